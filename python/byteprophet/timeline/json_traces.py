"""Reads JSON trace files part by part, and checks the fields of their events."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.timeline.json_stream import JsonStream

EVENTS = "traceEvents"
_LISTS = (EVENTS, "workload_graph", "nodes")
_MOST_US = 2**62


def json_parts(path: Path, chunks: Iterator[bytes]) -> Iterator[tuple[str, Any]]:
    """Yields the parts of the JSON in ``chunks``, the content of the file that errors name.

    Each part is a key and a value. First come the elements of the lists ``traceEvents``,
    ``workload_graph`` and ``nodes``, with the list's name as key. Then comes the object that
    contained them, with empty lists in their place and the key "". Further JSON values follow, also
    with the key "". A list without an object around it counts as ``traceEvents``. Raises
    ``UserError`` if the file is cut off or not JSON.
    """
    stream = JsonStream(path, chunks)
    if stream.peek() == "{":
        about: dict[str, Any] = {}
        yield from _object_parts(path, stream, about)
    else:
        about = {EVENTS: []}
        for element in _elements(stream):
            yield EVENTS, element
    yield "", about
    while stream.peek():
        yield "", stream.value()


def _object_parts(
    path: Path, stream: JsonStream, about: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    stream.take("{")
    if stream.peek() == "}":
        stream.take("}")
        return
    while True:
        if stream.peek() != '"':
            stream.take('"')  # raises an error that states the place
        key = stream.value()
        stream.take(":")
        if key in _LISTS and stream.peek() == "[":
            if key in about:
                raise UserError(f"{path}: is not a trace: it has two lists {key}")
            about[key] = []
            for element in _elements(stream):
                yield key, element
        else:
            about[key] = stream.value()
        if stream.take(",}") == "}":
            return


def _elements(stream: JsonStream) -> Iterator[Any]:
    stream.take("[")
    if stream.peek() == "]":
        stream.take("]")
        return
    while True:
        yield stream.value()
        if stream.take(",]") == "]":
            return


def field(path: Path, event: Mapping[str, Any], number: int, name: str, kind: type) -> Any:
    """The event's field ``name``. Raises ``UserError`` unless it exists and is of ``kind``."""
    value = event.get(name)
    if not isinstance(value, kind):
        raise _wrong(path, number, name, reprlib.repr(value), f"of {kind.__name__}")
    return value


def time_ns(path: Path, event: Mapping[str, Any], number: int, name: str) -> int:
    """The event's field ``name``, a time in microseconds with any decimals, in nanoseconds."""
    value = event.get(name)
    if type(value) is int and abs(value) < _MOST_US:
        return value * 1000
    try:
        if isinstance(value, str) and abs(exact := Decimal(value)) < _MOST_US:
            return round(exact * 1000)
    except ArithmeticError:  # it is not a number
        pass
    text = value if isinstance(value, str) else reprlib.repr(value)
    raise _wrong(path, number, name, repr(text[:40]), "a number")


def _wrong(path: Path, number: int, name: str, value: str, must: str) -> UserError:
    return UserError(f"{path}: event {number}: {name} {value}: must be {must}")
