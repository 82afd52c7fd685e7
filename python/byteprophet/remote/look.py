"""What a launcher must know of a host before it starts roles there, as one line of JSON.

    python -m byteprophet.remote.look [PATH...]

runs on that host, where the roles will start. It reports the paths that are not there.
"""

from __future__ import annotations

import importlib.metadata
import ipaddress
import json
import os
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from byteprophet.errors import UserError
from byteprophet.input_files import parse_json
from byteprophet.launcher.checks import root_port

MARK = "byteprophet-look "
"""Before the JSON: a login script or a launcher may print other lines."""
_PORTS = 2
_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - the port must be free on all of them; nothing listens


@dataclass(frozen=True)
class Look:
    """A host as it sees itself.

    Attributes:
        version: of its byteprophet.
        host: its name.
        node: how Slurm calls it; "": Slurm did not start this.
        rank: the number that mpirun or srun gave to this process; -1: none did.
        network: the same on two "hosts" that are one: an id of its network namespace.
        reached: the address at which this host got the ssh connection that runs this; "": none
            does.
        interfaces: per interface, its IPv4 addresses with their networks: 10.0.0.2/24.
        ipv6: its addresses of IPv6 that other networks may reach.
        ports: free ones.
        missing: the asked paths that are not there.
    """

    version: str
    host: str
    node: str
    rank: int
    network: str
    reached: str
    interfaces: dict[str, list[str]]
    ipv6: list[str]
    ports: list[int]
    missing: list[str]


def rank_in(environment: dict[str, str]) -> int:
    """The number of this process among those that mpirun or srun started; -1: neither did."""
    names = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
    return next((int(environment[n]) for n in names if environment.get(n, "").isdecimal()), -1)


def world_in(environment: dict[str, str]) -> int:
    """The number of processes that mpirun or srun started; -1: it is not known."""
    names = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
    return next((int(environment[n]) for n in names if environment.get(n, "").isdecimal()), -1)


def look(paths: list[str]) -> Look:
    """Look at this host. ``paths`` are those that a job needs."""
    environment = dict(os.environ)
    interfaces = _interfaces()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    ports: set[int] = set()
    while len(ports) < _PORTS:
        ports.add(root_port(None, _EVERY_ADDRESS))
    return Look(
        version=importlib.metadata.version("byteprophet"),
        host=socket.gethostname(),
        node=environment.get("SLURMD_NODENAME", ""),
        rank=rank_in(environment),
        network=f"{boot}:{os.stat('/proc/self/ns/net').st_ino}",  # noqa: PTH116 - no file
        reached=_reached_in(environment, interfaces),
        interfaces=interfaces,
        ipv6=_ipv6(),
        ports=sorted(ports),
        missing=[path for path in paths if not Path(path).exists()],
    )


def _reached_in(environment: dict[str, str], interfaces: dict[str, list[str]]) -> str:
    """The server's address in SSH_CONNECTION, if that is about this process on this host.

    mpirun and srun hand the variable on from a login node, where it is about that node.
    """
    words = environment.get("SSH_CONNECTION", "").split()
    if len(words) != 4 or rank_in(environment) >= 0:
        return ""
    own = {text.partition("/")[0] for each in interfaces.values() for text in each}
    address = ipv4_in(words[2])
    return "" if address is None or str(address) not in own else str(address)


def ipv4_in(text: str) -> ipaddress.IPv4Address | None:
    """The address ``text``, which may be written as one of IPv6 that stands for it; else None."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return address if isinstance(address, ipaddress.IPv4Address) else address.ipv4_mapped


def _interfaces() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family == socket.AF_INET and each.netmask:
                text = str(ipaddress.IPv4Interface(f"{each.address}/{each.netmask}"))
                found.setdefault(name, []).append(text)
    return found


def _ipv6() -> list[str]:
    every = [each for rows in psutil.net_if_addrs().values() for each in rows]
    texts = [each.address for each in every if each.family == socket.AF_INET6]
    found = [ipaddress.IPv6Address(text.partition("%")[0]) for text in texts]
    return [str(each) for each in found if not (each.is_loopback or each.is_link_local)]


def look_from(fields: Any, where: str) -> Look:
    """The look that ``where`` gave as ``fields``. Raises ``UserError`` for other fields."""
    try:
        return Look(**fields)
    except TypeError:
        raise UserError(
            f"{where}: its byteprophet has another version than this one: install the same"
        ) from None


def parse_looks(output: str, where: str) -> list[Look]:
    """The looks in what ``where`` printed. Raises ``UserError`` for one that is not whole."""
    found = []
    for line in output.splitlines():
        _, mark, text = line.partition(MARK)
        if mark:
            try:
                fields = parse_json(text)
            except ValueError:
                fields = None
            found.append(look_from(fields, where))
    return found


def check_look(look: Look, where: str) -> None:
    """Raises ``UserError`` if no role of this version can run in what ``where`` looked at."""
    version = importlib.metadata.version("byteprophet")
    if look.version != version:
        raise UserError(
            f"{where}: it has byteprophet {look.version}, this host {version}: install the same"
        )
    if look.missing:
        raise UserError(f"{where}: {look.missing[0]}: there is no such file or directory there")


if __name__ == "__main__":
    # In one write: what others print at the same time must not come in between.
    print(f"{MARK}{json.dumps(asdict(look(sys.argv[1:])))}\n", end="", flush=True)
