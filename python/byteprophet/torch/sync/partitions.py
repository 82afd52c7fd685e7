"""Changes BytePS' partition size per tensor, which our build of BytePS supports (patch 0034).

Threads: the training thread calls everything.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from byteps.torch import c_lib

_kept: set[str] = set()  # tensors with a size of their own


def repartition(names: Iterable[str], size_bytes: int) -> None:
    """Divide the tensors ``names`` into partitions of ``size_bytes``, from the next push-pull on.

    All of them must have been declared. Every rank must call this between the same two operations
    of each tensor. BytePS rounds the size up to a multiple of the page size times the number of
    local ranks. Tensors with a size of their own keep it.
    """
    _repartition((name for name in names if name not in _kept), size_bytes)


def keep_size(name: str, size_bytes: int) -> None:
    """Like ``repartition``, for one tensor and for good."""
    _kept.add(name)
    _repartition([name], size_bytes)


def _repartition(names: Iterable[str], size_bytes: int) -> None:
    library = ctypes.CDLL(c_lib.__file__)
    library.byteps_repartition.argtypes = [ctypes.c_char_p, ctypes.c_uint]
    library.byteps_repartition.restype = ctypes.c_uint
    for name in names:
        library.byteps_repartition(f"byteps.{name}".encode(), size_bytes)
