"""Reads and decompresses files of other tools. Their content, not their name, tells the format."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO

from byteprophet.errors import UserError
from byteprophet.input_files import check_file

_CHUNK_BYTES = 1 << 20
_MOST_BYTES = 1 << 31
_MOST_TIMES = 256  # as large as its gzip, which is at most 1032 times smaller
_SMALL_BYTES = 1 << 22  # whose ratio is not looked at
_MOST_BLANKS = 64  # chunks
_GZIP = b"\x1f\x8b"
_OTHERS = {
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
}
"""First bytes of files in compression formats that we do not read."""


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yields the content of the file, decompressed if it is gzip, in pieces of up to 1 MiB.

    The first piece contains more than whitespace. Raises ``UserError`` if the file cannot be read,
    is not a regular one, is cut off, is empty, is compressed in another format, or is gzip of more
    than a trace has.
    """
    check_file(path)
    try:
        with path.open("rb") as raw:
            begin = raw.peek(8)
            for magic, name in _OTHERS.items():
                if begin.startswith(magic):
                    raise UserError(f"{path}: is packed as {name}: unpack it first")
            pieces = _unpacked(path, raw) if begin.startswith(_GZIP) else _pieces(raw)
            content = next(pieces, b"")
            blanks = 0
            while content and not content.strip(b" \t\r\n\0"):
                blanks += 1
                if blanks > _MOST_BLANKS:
                    raise UserError(f"{path}: begins with more than {_MOST_BLANKS} MiB of blanks")
                content = next(pieces, b"")
            if not content:
                raise UserError(f"{path}: is empty")
            yield content
            yield from pieces
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: is cut off or not gzip: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


def _pieces(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    while content := file.read(_CHUNK_BYTES):
        yield content


def _unpacked(path: Path, raw: IO[bytes]) -> Iterator[bytes]:
    """The content of a gzip file, as far as it is not absurdly large: little gzip can be much."""
    size_bytes = 0
    for content in _pieces(gzip.GzipFile(fileobj=raw)):
        size_bytes += len(content)
        if size_bytes > _MOST_BYTES:
            raise UserError(
                f"{path}: unpacks to more than {_MOST_BYTES >> 20} MiB: write a trace of fewer "
                "steps, or unpack it first"
            )
        if size_bytes > max(_SMALL_BYTES, _MOST_TIMES * raw.tell()):
            raise UserError(
                f"{path}: unpacks to more than {_MOST_TIMES} times its size, as no trace does: "
                "unpack it first if it is one"
            )
        yield content


def check_once(paths: Iterable[Path]) -> None:
    """Raises ``UserError`` if a file is given twice: it would be taken for two ranks."""
    seen: set[Path] = set()
    for path in paths:
        place = path.resolve()
        if place in seen:
            raise UserError(f"{path}: is given twice")
        seen.add(place)


def take_rank(by_rank: dict[int, Path], rank: int, path: Path) -> None:
    """Notes in ``by_rank`` that ``path`` is of ``rank``. Raises ``UserError`` if another one is."""
    if rank in by_rank:
        raise UserError(f"{path}: is of rank {rank}, as {by_rank[rank]} is")
    by_rank[rank] = path


def with_first(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """Returns the first of ``chunks``, and an iterator over all of them."""
    first = next(chunks)
    return first, chain((first,), chunks)


def read_bytes(path: Path, chunks: Iterator[bytes]) -> bytes:
    """All ``chunks`` joined. Raises ``UserError`` if they have more than 2 GiB."""
    content = bytearray()
    for chunk in chunks:
        content += chunk
        if len(content) > _MOST_BYTES:
            raise UserError(f"{path}: has more than 2 GiB: write a trace of fewer steps")
    return bytes(content)


def is_json(begin: bytes) -> bool:
    """Whether content that begins with ``begin`` may be a JSON trace, in any Unicode encoding."""
    text = begin.decode(json.detect_encoding(begin[:4]), "replace")
    return text.lstrip("\ufeff \t\r\n")[:1] in ("{", "[")
