"""What was appended to a text file since the last look, as whole lines.

A file may not exist yet, may be cut short, or be replaced: it is then read from its beginning. A
last line without an end is left for the next look. Lines that are too long are left out. One thread
uses a tail.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

_PIECE_BYTES = 1 << 20
_LONGEST_BYTES = 1 << 18


class Tail:
    """``most_bytes``: at most so much is read at a look.

    Of a file that is longer when it is first seen, the end is read. ``left_out``: what was not read
    of this file, in words. ``files``: how many files there have been, each in place of the one
    before.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        self.path = path
        self.left_out: set[str] = set()
        self.files = 0
        self._most_bytes = most_bytes
        self._file: tuple[int, int] | None = None  # device and inode
        self._offset = 0
        self._partial = b""
        self._in_long_line = False

    def lines(self) -> list[bytes]:
        """The lines since the last look, without their ends.

        Raises ``OSError`` if the file cannot be read.
        """
        # Without O_NONBLOCK, opening a pipe would wait for somebody who writes to it.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError("is not a regular file")
            self._settle(status)
            file.seek(self._offset)
            lines: list[bytes] = []
            left = self._most_bytes
            while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
                self._offset += len(piece)
                left -= len(piece)
                lines += self._split(piece)
            return lines

    def _settle(self, status: os.stat_result) -> None:
        file = (status.st_dev, status.st_ino)
        if file != self._file or status.st_size < self._offset:
            self._file = file
            self.files += 1
            self._offset = max(0, status.st_size - self._most_bytes)
            self._partial = b""
            # In the middle of a file is the middle of a line.
            self._in_long_line = self._offset > 0
            beginning = f"all but its last {self._most_bytes >> 20} MiB"
            self.left_out = {beginning} if self._offset else set()

    def _split(self, piece: bytes) -> list[bytes]:
        *whole, self._partial = (self._partial + piece).split(b"\n")
        if whole and self._in_long_line:
            del whole[0]
            self._in_long_line = False
        short = [line for line in whole if len(line) <= _LONGEST_BYTES]
        is_too_long = len(self._partial) > _LONGEST_BYTES
        if is_too_long:
            self._partial, self._in_long_line = b"", True
        if is_too_long or len(short) < len(whole):
            self.left_out.add(f"lines of more than {_LONGEST_BYTES >> 10} KiB")
        return short


def new_lines(tail: Tail, problem: Callable[[str], None]) -> list[bytes]:
    """The lines since the last look. ``problem`` is told what was left out of the file.

    It is also told of a file that cannot be read, which then has no lines. A file that does not
    exist is no problem: it may come.
    """
    try:
        lines = tail.lines()
    except FileNotFoundError:
        return []
    except OSError as error:
        problem(f"{tail.path}: cannot be read: {error.strerror or error}")
        return []
    if tail.left_out:
        problem(f"{tail.path}: {' and '.join(sorted(tail.left_out))} are left out")
    return lines
