"""Writes the learning rate to ``./lr.s``, where BytePS' compressors with error feedback read it."""

from __future__ import annotations

import struct
import weakref
from pathlib import Path
from typing import BinaryIO

from byteps.mxnet import ops


class LearningRateFile:
    """The file for all processes that run in this directory.

    Local rank 0 makes it. It is removed when this object is deleted.
    """

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        if ops.local_rank() == 0:
            path = Path("lr.s").absolute()
            self._file = path.open("wb")
            self._file.truncate(8)
            weakref.finalize(self, _remove, self._file, path)

    def write(self, learning_rate: float) -> None:
        """Write ``learning_rate`` for the compressors."""
        if self._file is not None:
            self._file.seek(0)
            self._file.write(struct.pack("d", learning_rate))
            self._file.flush()


def _remove(file: BinaryIO, path: Path) -> None:
    file.close()
    path.unlink(missing_ok=True)
