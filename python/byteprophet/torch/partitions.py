"""BytePS' partition size per tensor, which our build of BytePS lets change (patch 0034)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from byteps.torch import c_lib


def repartition(names: Iterable[str], size_bytes: int) -> None:
    """Cut the tensors ``names`` into pieces of ``size_bytes`` from their next ``push_pull`` on.

    All are declared. Every rank calls it between the same two operations of each of them. BytePS
    rounds the size up to whole pages times local ranks.
    """
    library = ctypes.CDLL(c_lib.__file__)
    library.byteps_repartition.argtypes = [ctypes.c_char_p, ctypes.c_uint]
    library.byteps_repartition.restype = ctypes.c_uint
    for name in names:
        library.byteps_repartition(f"byteps.{name}".encode(), size_bytes)
