"""Cuts a host's cable, like an accident; tests and experiments do this to a running job."""

from __future__ import annotations

from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.network import tools
from byteprophet.network.permission import enter_command


def cut_cable(pid: int) -> None:
    """Takes down the link of the host of a Cluster that process ``pid`` runs on; for good.

    UserError if that process is on this machine's own network, or the link cannot be taken down.
    """
    network = Path("/proc") / str(pid) / "ns" / "net"
    try:
        own = network.samefile("/proc/self/ns/net")
    except OSError as error:
        raise UserError(f"process {pid}: {error.strerror}") from None
    if own:
        raise UserError(f"process {pid} is on this machine's own network, which is not cut")
    command = [*enter_command(pid), "--net", "--", tools.require("ip")]
    failure = tools.run([*command, "link", "set", "dev", "eth0", "down"])
    if failure is not None:
        raise UserError(f"the cable of process {pid} cannot be cut: {failure}")
