"""The learning rate, where BytePS' compressors with error feedback read it: ``./lr.s``."""

from __future__ import annotations

import struct
import weakref
from pathlib import Path
from typing import BinaryIO

from byteps.mxnet import ops


class LearningRateFile:
    """Made by local rank 0, for all processes that work in this directory; removed with it."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        if ops.local_rank() == 0:
            path = Path("lr.s").absolute()
            self._file = path.open("wb")
            self._file.truncate(8)
            weakref.finalize(self, _remove, self._file, path)

    def write(self, learning_rate: float) -> None:
        """Let the compressors know ``learning_rate``."""
        if self._file is not None:
            self._file.seek(0)
            self._file.write(struct.pack("d", learning_rate))
            self._file.flush()


def _remove(file: BinaryIO, path: Path) -> None:
    file.close()
    path.unlink(missing_ok=True)
