"""How a process ends whose user has asked for what cannot be done."""

from __future__ import annotations

import subprocess
import sys

from byteprophet.launcher.causes import error_in

_PROGRAM = """
from byteprophet._leaving import left_on_error
from byteprophet.errors import UserError
with left_on_error():
    raise UserError("the batch\\nhas no size")
print("went on")
"""


def test_a_users_error_ends_the_process_with_a_line_that_is_quoted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert error_in(done.stderr.rstrip("\n")) == "the batch has no size"
