"""What ``malloc_peak.c`` counts in this process; it runs with that library in LD_PRELOAD.

``compiled`` makes the library. The other functions need it.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

from byteprophet.errors import JobFailed, UserError

_SOURCE = Path(__file__).with_suffix(".c")
_COMPILING_S = 60
_library: Any = ctypes.CDLL(None)


def compiled(folder: Path) -> Path:
    """The library that counts allocations, compiled into ``folder``."""
    library = folder / "malloc_peak.so"
    command = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMPILING_S
        )
    except FileNotFoundError:
        raise UserError("memory: gcc is not installed: apt-get install gcc") from None
    if done.returncode:
        raise JobFailed(f"memory: gcc failed: {done.stderr}")
    return library


def reset_peak() -> None:
    """Begin a peak: that of what lives now."""
    _library.malloc_reset_peak()


def peak_bytes() -> int:
    """The most that has lived at once since ``reset_peak``."""
    return _bytes_of("malloc_peak_bytes")


def live_bytes() -> int:
    """What lives now."""
    return _bytes_of("malloc_live_bytes")


def _bytes_of(name: str) -> int:
    function = getattr(_library, name)
    function.restype = ctypes.c_longlong
    return int(function())
