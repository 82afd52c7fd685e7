"""Tries whether this user may make the namespaces of a cluster.

All steps are tried in one process; only if one fails, each by itself, to name it. A process
remembers that all succeeded, as a bench asks before each of its jobs. If they are not permitted any
more, ``Cluster`` finds out and tries again. A failure is not remembered: the user may remove it.
"""

from __future__ import annotations

import os

from byteprophet.errors import UserError
from byteprophet.network import tools

# What is tried, in order of dependence: (name in the message, shell command in new namespaces).
# They can also run one after the other in the same namespaces.
_STEPS = (
    ("network and mount namespaces", "true"),
    ("a tmpfs on /dev/shm", "mount -t tmpfs tmpfs /dev/shm"),
    ("a pair of veth devices", "ip link add name probe0 type veth peer name probe1"),
    ("a bridge", "ip link add name probe2 type bridge"),
    (
        "a route with TCP cubic",
        "ip link set lo up && ip route add 10.87.0.0/24 dev lo congctl cubic",
    ),
    ("the tbf queue of tc", "tc qdisc add dev lo root tbf rate 1mbit burst 256k latency 20ms"),
)

_permitted: set[tuple[int, str]] = set()  # user and PATH


def unshare_command() -> list[str]:
    """The start of a command line that runs the rest in fresh namespaces.

    An ordinary user gets a user namespace around them, in which he is root; root needs none.
    """
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return [tools.require("unshare"), *user, "--net", "--mount", "--propagation", "private", "--"]


def enter_command(pid: int) -> list[str]:
    """The start of a command line that enters namespaces of process ``pid``; which, comes next.

    For root the user namespace is the machine's own, and entering it is refused as a change to
    itself, so left out.
    """
    in_user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    return [tools.require("nsenter"), "--target", str(pid), *in_user]


def entered_namespaces(pid: int) -> tuple[str, ...]:
    """What ``enter_command`` with ``--net --mount`` enters, as paths, in the order of entering."""
    user = () if os.geteuid() == 0 else ("user",)
    return tuple(f"/proc/{pid}/ns/{name}" for name in (*user, "net", "mnt"))


def why_not_permitted() -> str | None:
    """None if a cluster can be made here, else one line: what failed and what it said.

    Leaves nothing behind: whatever is tried lives in the namespaces of a process that ends.
    """
    key = os.geteuid(), os.environ.get("PATH", "")
    reason = None if key in _permitted else why_not_now()
    if reason is None:
        _permitted.add(key)
    return reason


def why_not_now() -> str | None:
    """``why_not_permitted``, tried anew."""
    try:
        for program in tools.PACKAGES:
            tools.require(program)
        unshare = unshare_command()
    except UserError as missing:
        return str(missing)
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    inside = [*unshare, "env", f"PATH={path}", "sh", "-c"]
    if tools.run([*inside, " && ".join(command for _, command in _STEPS)]) is None:
        return None
    for name, command in _STEPS:
        failure = tools.run([*inside, command])
        if failure is not None:
            hint = "" if os.geteuid() == 0 else "; try as root"
            return f"{name} cannot be made here ({failure}){hint}"
    return None
