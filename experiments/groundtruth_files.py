"""Reads the compressed files of the public measurements."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.input_files import read_bytes


def unpacked(path: Path) -> str:
    """The text in a gzip file. Raises ``UserError`` if it cannot be read."""
    content = read_bytes(path)
    try:
        return gzip.decompress(content).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is damaged: {error}: get the measurements again") from None
