"""Reads files and texts from outside with limits, and refuses bad ones in one line.

Only regular files are read, because a pipe may never end and a device never does. Files that are
too large are not loaded. Data that is nested too deeply is refused, because no valid input is.
"""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from byteprophet.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST_BYTES = 1 << 28
"""Of a file that is read whole. The largest of ours, logs aside, have a few megabytes."""
LARGEST_LOG_BYTES = 1 << 30
"""Of a file that grows while a job runs."""
_DEEPEST = 64
_TOO_DEEP = "it is nested too deeply"
_MOST_DIGITS = 18


def read_bytes(path: str | Path, most_bytes: int = LARGEST_BYTES) -> bytes:
    """The content of the regular file at ``path``; ``UserError`` where there is none to be read."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for somebody who writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            _check_regular(path, os.fstat(descriptor), most_bytes)
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: a path that no file can have
        raise UserError(f"{path}: cannot be read: {_reason(error)}") from None


def is_there(path: str | Path) -> bool:
    """Whether anything is at ``path``, which may be a text that no path can be."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long a name, among others
        return False


def check_file(path: Path, most_bytes: int | None = None) -> None:
    """``UserError`` unless ``path`` is a regular file, for those who open it by themselves."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {_reason(error)}") from None
    _check_regular(path, status, most_bytes)


def read_text(path: str | Path) -> str:
    """The file's text; ``UserError`` where it cannot be read as UTF-8."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text (byte {error.start})") from None


def has_schema(data: object, number: int) -> bool:
    """Whether ``data`` is a table that says it has the schema ``number``, and not true or 1.0."""
    if not isinstance(data, Mapping):
        return False
    schema = data.get("schema")
    return type(schema) is int and schema == number


def read_json(path: Path, *, unique: bool = False) -> Any:
    """The JSON value in the file at ``path``; ``UserError`` where there is none.

    ``unique``: names that occur twice in an object are refused.
    """
    try:
        return parse_json(read_bytes(path), unique=unique)
    except ValueError as error:
        raise UserError(f"{path}: is not JSON: {error}") from None


def parse_json(text: str | bytes, *, unique: bool = False) -> Any:
    """The JSON value in ``text``; ``ValueError`` for anything else.

    Anything else are also numbers that JSON does not have, text that is no Unicode, and values that
    are nested too deeply; and, with ``unique``, names that occur twice in an object.
    """
    pairs = _unique if unique else None
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=pairs,
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    check_plain(value)
    return value


def parse_table(text: str, source: str) -> dict[str, Any]:
    """The TOML table in ``text``; a ``UserError`` where it is empty or not TOML."""
    try:
        table: dict[str, Any] = tomllib.loads(text)
        check_plain(table)
    except RecursionError:
        raise UserError(f"{source}: is not TOML: {_TOO_DEEP}") from None
    except ValueError as error:  # TOMLDecodeError is one; another is of a number of 5000 digits
        raise UserError(f"{source}: is not TOML: {error}") from None
    if not table:
        raise UserError(f"{source}: is empty")
    return table


def whole_number(text: str) -> int | None:
    """The number that ``text`` says in at most 18 decimal digits; None where it says none."""
    short = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if short else None


def is_number(value: Any) -> bool:
    """Whether a value from a file is a finite number; ``true`` and ``false`` are none."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)


def first_repeated(names: Iterable[str]) -> str | None:
    """The first name that has occurred before; None if all differ."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _check_regular(path: str | Path, status: os.stat_result, most_bytes: int | None) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise UserError(f"{path}: cannot be read: Is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path}: is not a regular file: save its content to one")
    if most_bytes is not None and status.st_size > most_bytes:
        raise UserError(f"{path}: is larger than {most_bytes >> 20} MiB, the limit for such files")


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = first_repeated(name for name, _ in pairs)
        raise ValueError(f"{str(twice)[:80]!r} occurs twice")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


def check_plain(value: Any) -> None:
    """Raise ``ValueError`` where containers are nested too deeply or a text is no Unicode.

    Also where a whole number is larger than any float: nothing is counted so far.
    """
    level = [value]
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                below += node.keys()
                below += node.values()
            elif isinstance(node, list):
                below += node
            elif isinstance(node, str):
                node.encode()
            elif isinstance(node, int) and abs(node) > sys.float_info.max:
                raise ValueError(f"{str(node)[:40]}... is too large a number")
        if not below:
            return
        level = below
    raise ValueError(_TOO_DEEP)
