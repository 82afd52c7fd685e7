"""Programs of a cluster, such as scontrol or mpirun, run to their ends; and ours on its hosts."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import PurePosixPath

from byteprophet.errors import UserError


def run_program(
    command: Sequence[str], what: str, timeout_s: float, told: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` with ``told`` on its standard input.

    Raises ``UserError``, which says that ``what`` was too slow, at the timeout.
    """
    try:
        return subprocess.run(
            command,
            input=told,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{what} took longer than {timeout_s:.0f} s") from None


def python_command(python: str, module: str, arguments: Sequence[str]) -> list[str]:
    """A command that runs ``module`` on another host by its interpreter ``python``.

    There, as in an activated environment, "python" of a worker's command is ``python``.
    """
    programs = shlex.quote(str(PurePosixPath(python).parent))
    path = f'PATH={programs}:"$PATH" ' if "/" in python else ""
    # Not in the user's directory: python -m looks for modules there first.
    return ["sh", "-c", f"cd / && {path}exec {shlex.join([python, '-m', module, *arguments])}"]
