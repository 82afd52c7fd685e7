"""Finds and runs the programs of util-linux and iproute2 that make a cluster; reports errors.

An ordinary user's PATH often lacks /usr/sbin, which has ``ip`` and ``tc``, so that directory is
searched, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from byteprophet.errors import UserError

# program -> the Debian package that has it
PACKAGES = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "tc": "iproute2",
}
_TIMEOUT_S = 20.0


def find(program: str) -> str | None:
    """Path of ``program``, or None."""
    return shutil.which(program, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def require(program: str) -> str:
    """Path of ``program``; UserError naming the package where it is not installed."""
    path = find(program)
    if path is None:
        raise UserError(f"{program} is not installed: apt-get install {PACKAGES[program]}")
    return path


def run(command: Sequence[str], script: str = "") -> str | None:
    """Runs ``command`` with ``script`` on its standard input; None, or its error as one line."""
    try:
        done = subprocess.run(
            list(command),
            input=script,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            start_new_session=True,  # out of reach of a Ctrl-C that is for this process
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not answer within {_TIMEOUT_S:.0f} s"
    except OSError as error:
        return f"{command[0]} cannot be started: {error.strerror}"
    if done.returncode == 0:
        return None
    said = "; ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
    return said or f"{command[0]} ended with status {done.returncode}"
