"""The state that a fork server and a program must share for a fork to replace a normal start.

A program inherits attributes of the process that starts it; a fork inherits those of its server.
The libraries that a server has loaded have read environment variables. So all of these must be
equal. The only exceptions are variables that BytePS, byteprophet and torch.distributed read later,
when a job begins.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# Nothing that a server imports reads these; tests/launcher/test_fork_server.py checks that.
LATE_PREFIXES = ("BYTEPROPHET_", "BYTEPS_", "DMLC_", "PS_")
LATE = frozenset(
    {
        "GLOO_SOCKET_IFNAME",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "OLDPWD",
        "PORT",
        "PWD",
        "PYTEST_CURRENT_TEST",
        "RANK",
        "SHLVL",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RESTART_COUNT",
        "WORLD_SIZE",
        "_",
    }
)
_STATUS = ("Umask", "Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp:", "Cpus_allowed:")
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


def early_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables in ``environment`` that a server gets: all that imports may read."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name not in LATE and not name.startswith(LATE_PREFIXES)
    }


def fork_key(environment: Mapping[str, str]) -> object:
    """A key for a program with ``environment`` that this thread starts.

    Programs with equal keys may be forked from the same server.
    """
    thread = Path("/proc/thread-self")
    status = (thread / "status").read_text(errors="replace").splitlines()
    return (
        tuple(early_variables(environment).items()),
        (thread / "limits").read_text(),
        tuple(line for line in status if line.startswith(_STATUS)),
        os.sched_getscheduler(0),
        os.getpriority(os.PRIO_PROCESS, 0),
        tuple((thread / "ns" / name).readlink() for name in _NAMESPACES),
    )
