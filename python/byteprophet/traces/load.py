"""Loads the traces of a job's ranks: files, or folders of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.timeline.chakra_schema import begins_with_metadata
from byteprophet.timeline.foreign_files import (
    check_once,
    is_json,
    read_bytes,
    read_chunks,
    take_rank,
    with_first,
)
from byteprophet.timeline.json_traces import EVENTS, json_parts
from byteprophet.traces.chakra import read_chakra_trace
from byteprophet.traces.profile import ProfileReader
from byteprophet.traces.rank import rank_trace
from byteprophet.traces.work import RankTrace

_SUFFIXES = (".json", ".json.gz", ".et")
READ = "a torch.profiler trace or a Chakra trace (*.et)"


def load_traces(sources: Sequence[Path]) -> list[RankTrace]:
    """The traces of ranks, in order of their ranks.

    A file that does not state its rank gets its position. Raises ``UserError``, with one line, if
    a file cannot be read or replayed, is given twice, or if two are of one rank or state different
    numbers of ranks.
    """
    paths = [path for source in sources for path in _files(source)]
    check_once(paths)
    traces = [load_trace(path, position) for position, path in enumerate(paths)]
    by_rank: dict[int, Path] = {}
    for trace in traces:
        take_rank(by_rank, trace.rank, trace.path)
    _check_world_sizes(traces)
    return sorted(traces, key=lambda trace: trace.rank)


def load_trace(path: Path, rank: int = 0) -> RankTrace:
    """The trace of one rank. ``rank`` is used if the file does not state its own."""
    first, chunks = with_first(read_chunks(path))
    is_chakra = begins_with_metadata(first)
    if is_chakra or (not is_json(first) and ".et" in path.suffixes[-2:]):
        return read_chakra_trace(path, read_bytes(path, chunks), rank)
    if not is_json(first):
        raise UserError(f"{path}: is not a file that can be read: {READ}")
    reader = ProfileReader(path)
    is_trace = False
    for key, value in json_parts(path, chunks):
        is_trace = is_trace or key == EVENTS or (isinstance(value, dict) and EVENTS in value)
        reader.take(key, value)
    if not is_trace:
        raise UserError(f"{path}: is not a file that can be read: {READ}")
    return rank_trace(reader.profile(rank))


def _check_world_sizes(traces: Sequence[RankTrace]) -> None:
    """Refuses ranks of different jobs. Traces need not state their number of ranks."""
    stated = [trace for trace in traces if trace.world_size]
    for trace in stated:
        if trace.world_size != stated[0].world_size:
            raise UserError(
                f"{trace.path}: is of {trace.world_size} ranks, and {stated[0].path} of "
                f"{stated[0].world_size}: give traces of one job"
            )
    for trace in traces:
        if stated and trace.rank >= stated[0].world_size:
            raise UserError(
                f"{trace.path}: is of rank {trace.rank}, but {stated[0].path} states "
                f"{stated[0].world_size} ranks: give traces of one job"
            )


def _files(source: Path) -> list[Path]:
    """The files of a folder by name, or the file itself."""
    if not source.is_dir():
        return [source]
    found = sorted(path for path in source.iterdir() if path.name.endswith(_SUFFIXES))
    if not found:
        raise UserError(f"{source}: has no traces: {READ}")
    return found
