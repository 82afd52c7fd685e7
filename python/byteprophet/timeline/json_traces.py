"""JSON files of traces: read whole, gzipped or not, with times that lose no nanosecond.

Numbers with a decimal point are kept as text: a float has too few digits for nanoseconds since
1970.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError

_GZIP = b"\x1f\x8b"
_MOST_US = 2**62


def read_bytes(path: Path) -> bytes:
    """The file's content, decompressed; ``UserError`` if it cannot be read or is empty."""
    try:
        content = path.read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: is cut off or not gzip: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not content.strip():
        raise UserError(f"{path}: is empty")
    return content


def parse_json(path: Path, content: bytes) -> Any:
    """The JSON value in ``content``; ``UserError`` if it is cut off or something else."""
    values = parse_json_values(path, content)
    if len(values) > 1:
        raise UserError(f"{path}: is not a trace: it has {len(values)} JSON values, not one")
    return values[0]


def parse_json_values(path: Path, content: bytes) -> list[Any]:
    """All JSON values in ``content``, one behind the other; at least one."""
    decoder, values, at = json.JSONDecoder(parse_float=str), [], 0
    try:
        text = content.decode("utf-8").strip()
        while at < len(text):
            value, at = decoder.raw_decode(text, at)
            values.append(value)
            while text[at : at + 1].isspace():
                at += 1
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}: is cut off or not JSON: {error.msg} in line {error.lineno}, column "
            f"{error.colno}"
        ) from None
    except (RecursionError, ValueError) as error:  # numbers of thousands of digits
        raise UserError(f"{path}: is not a trace: {error}") from None
    return values


def trace_events(path: Path, trace: Any) -> list[Mapping[str, Any]]:
    """The events of a Chrome trace, each of which is an object."""
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list):
        raise UserError(f"{path}: is not a trace: it has no list traceEvents")
    for number, event in enumerate(events):
        if not isinstance(event, dict):
            raise UserError(f"{path}: event {number}: must be an object")
    return events


def field(path: Path, event: Mapping[str, Any], number: int, name: str, kind: type) -> Any:
    """A field that must be there and of ``kind``."""
    value = event.get(name)
    if not isinstance(value, kind):
        raise UserError(f"{path}: event {number}: {name} {value!r}: must be of {kind.__name__}")
    return value


def time_ns(path: Path, event: Mapping[str, Any], number: int, name: str) -> int:
    """A time in microseconds, with any number of decimals, in nanoseconds."""
    value = event.get(name)
    if type(value) is int and abs(value) < _MOST_US:
        return value * 1000
    try:
        if isinstance(value, str) and abs(exact := Decimal(value)) < _MOST_US:
            return round(exact * 1000)
    except ArithmeticError:  # it is no number
        pass
    raise UserError(f"{path}: event {number}: {name} {str(value)[:40]!r}: must be a number")
