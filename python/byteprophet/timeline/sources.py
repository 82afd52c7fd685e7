"""Recognises traces of all supported kinds by their content."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from byteprophet.errors import UserError
from byteprophet.timeline.chakra_json import FEEDER, ChakraJsonReader
from byteprophet.timeline.chakra_schema import begins_with_metadata
from byteprophet.timeline.events import SUFFIX, Events
from byteprophet.timeline.foreign_files import (
    check_once,
    is_json,
    read_bytes,
    read_chunks,
    take_rank,
    with_first,
)
from byteprophet.timeline.json_traces import EVENTS, json_parts
from byteprophet.timeline.read_chakra import chakra_events
from byteprophet.timeline.read_comm_json import CommJsonReader
from byteprophet.timeline.read_events import load_events, load_run
from byteprophet.timeline.read_kineto import KinetoReader

READ = (
    "a run directory, our events (*.arrows), BytePS' comm.json, a torch.profiler trace, or a "
    "Chakra trace (*.et, or as JSON)"
)


class _Reader(Protocol):
    """Takes the parts of a JSON file and then returns its spans."""

    def take(self, key: str, value: Any) -> None: ...
    def events(self, rank: int) -> Events: ...


def load_sources(paths: Sequence[Path]) -> list[Events]:
    """The events of run directories and files of any kind, in the order of ``paths``.

    A foreign file that does not state its worker's rank gets its number among files of its kind,
    from 0. Raises ``UserError``, with one line that names the file and what is wrong with it, or
    what another one has, too: a foreign file of the same kind and rank, or a role's table.
    """
    check_once(paths)
    events: list[Events] = []
    seen: Counter[str] = Counter()
    by_rank: dict[str, dict[int, Path]] = defaultdict(dict)
    by_table: dict[tuple[str, str, int], Path] = {}
    for path in paths:
        if path.is_dir() or path.suffix == SUFFIX:
            own = load_run(path) if path.is_dir() else [load_events(path)]
            for table in own:
                _take_table(by_table, table, path)
            events += own
        else:
            kind, found = _load_foreign(path, seen)
            seen[kind] += 1
            take_rank(by_rank[kind], found.origin.rank, path)
            events.append(found)
    return events


def _take_table(by_table: dict[tuple[str, str, int], Path], table: Events, path: Path) -> None:
    """Notes that ``path`` has ``table``. Raises ``UserError`` if another source has it, too."""
    name, role, rank = table.table.name, table.origin.role, table.origin.rank
    if (name, role, rank) in by_table:
        raise UserError(
            f"{path}: has {name} of {role}, as {by_table[name, role, rank]} has: give every "
            "role of one job once"
        )
    by_table[name, role, rank] = path


def _load_foreign(path: Path, seen: Counter[str]) -> tuple[str, Events]:
    """The file's kind and events. ``seen``: how many files of each kind came before it."""
    first, chunks = with_first(read_chunks(path))
    is_chakra = begins_with_metadata(first)
    if is_json(first) and not is_chakra:
        return _load_json(path, chunks, seen)
    if is_chakra or ".et" in path.suffixes[-2:]:
        return "chakra", chakra_events(path, read_bytes(path, chunks), seen["chakra"])
    raise UserError(f"{path}: is not a file that can be read: {READ}")


def _load_json(path: Path, chunks: Iterator[bytes], seen: Counter[str]) -> tuple[str, Events]:
    found: tuple[str, _Reader] | None = None
    for key, value in json_parts(path, chunks):
        if found is None:
            found = _reader(path, key, value)
        found[1].take(key, value)
    assert found is not None
    kind, reader = found
    return kind, reader.events(seen[kind])


def _reader(path: Path, key: str, value: Any) -> tuple[str, _Reader]:
    """The kind of a file and its reader, chosen by the file's first part."""
    if key == EVENTS and isinstance(value, dict):
        if value.get("cat") == "Comm":
            return "comm", CommJsonReader(path)
        return "kineto", KinetoReader(path)
    if key == FEEDER:
        return "chakra", ChakraJsonReader(path)
    if isinstance(value, dict) and EVENTS in value:
        if "schemaVersion" in value:
            return "kineto", KinetoReader(path)
        return "comm", CommJsonReader(path)
    if isinstance(value, dict) and ("version" in value or "attr" in value):
        return "chakra", ChakraJsonReader(path)
    return "other", _Other(path)


class _Other:
    """Takes the parts of a file that cannot be read, and then raises an error with the reason."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._about: Any = None

    def take(self, key: str, value: Any) -> None:
        """Takes the next part."""
        if key == "" and self._about is None:
            self._about = value

    def events(self, rank: int) -> Events:
        """Raises ``UserError``."""
        if isinstance(self._about, dict) and {"schema", "nodes"} <= self._about.keys():
            raise UserError(
                f"{self._path}: a host trace of PyTorch has no times: give it to "
                "chakra_trace_link and chakra_converter first"
            )
        raise UserError(f"{self._path}: is not a file that can be read: {READ}")
