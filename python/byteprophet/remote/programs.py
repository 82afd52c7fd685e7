"""Runs a program of a cluster, such as scontrol or mpirun, to its end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

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
