"""What commands print, where a disk may be full or nobody reads any more."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO


def tell(text: str) -> None:
    """One line on standard error, if it can be written there."""
    with contextlib.suppress(OSError):
        print(f"byteprophet: {text}", file=sys.stderr, flush=True)


def write_no_more(output: TextIO) -> None:
    """Have ``output`` go nowhere: what is buffered must not fail once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output.fileno())
    os.close(nowhere)
