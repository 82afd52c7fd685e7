"""A recorded run, prepared for analysis: one clock, one entry per worker, rounds matched.

All times are on one clock (``timeline/aligned.py``). Data that the run does not have stays empty: a
stock worker has no transfers, an all-reduce job has no servers, and a job without spans has no
layers. ``notes`` then tell the reader what is missing.

The analysis covers iterations that every worker recorded completely. It skips the job's first five,
in which policies do not know the job and the network yet, but never more than half of the recorded
ones, like ``replay/predict.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from byteprophet.diagnose.routed import NOT_ROUTED, Routed, read_routed
from byteprophet.errors import UserError
from byteprophet.job.fused_file import ALONE, Fused
from byteprophet.job.times import iteration_times_ns
from byteprophet.measure.run import Run
from byteprophet.measure.settings import read_told
from byteprophet.measure.tensors import check_servers, has_steps_alone
from byteprophet.order_statistics import distinct
from byteprophet.timeline.aligned import Aligned
from byteprophet.timeline.aligned_summary import clock_warnings
from byteprophet.timeline.clocks import on_one_clock, wall_clock
from byteprophet.timeline.events import Events
from byteprophet.timeline.joined import served_rows, worker_numbers
from byteprophet.timeline.tables import (
    SERVED,
    SERVED_TABLE,
    SPANS,
    TRANSFERS,
    Kind,
    Rows,
    TableKind,
)

Ints = npt.NDArray[np.int64]

_WARMUP = 5  # iterations


@dataclass(frozen=True, eq=False)
class Worker:
    """What one worker recorded. Two are equal only if they are the same object.

    ``spans``: ordered by begin; ``names``: by a span's ``name``. ``transfers``: ordered by
    ``pulled_ns``; ``served``: for each transfer its row in ``Recorded.served``, -1 if not known.
    ``starts_ns``, ``ends_ns``: of the measured iterations, shape (I,). ``ahead_ns``: by how much
    the common clock is ahead of the worker's own.
    """

    rank: int
    role: str
    spans: Rows
    names: Mapping[int, str]
    transfers: Rows
    served: Ints
    starts_ns: Ints
    ends_ns: Ints
    ahead_ns: int = 0


@dataclass(frozen=True)
class Recorded:
    """A run. ``config``: the content of ``config.toml``, empty if there is none.

    ``iterations``: their numbers, (I,). ``served``: the rows of all servers; ``server``: the server
    of each row, (S,). ``tensors``: names by number. ``fused``: the parameters of those that are
    buffers. ``lost``: number of lost rows; ``cut_off``:
    roles whose files were cut off. ``machines``: of all tables, as in ``Origin``. ``routed``: which
    transport carried what, if there were two.
    """

    config: Mapping[str, Any]
    workers: Sequence[Worker]
    iterations: Ints
    served: Rows
    server: Ints
    tensors: Mapping[int, str]
    fused: Fused = ALONE
    lost: int = 0
    cut_off: Sequence[str] = ()
    machines: Sequence[str] = ()
    notes: Sequence[str] = field(default_factory=tuple)
    routed: Routed = NOT_ROUTED

    def tensor(self, key: int) -> str:
        """The name of a partition's tensor, or its number if the name is not known."""
        return self.tensors.get(key >> 16) or f"tensor {key >> 16}"

    @property
    def window_ns(self) -> tuple[int, int]:
        """From the first start of a measured iteration to the last end."""
        begin_ns = min(int(worker.starts_ns[0]) for worker in self.workers)
        return begin_ns, max(int(worker.ends_ns[-1]) for worker in self.workers)

    @property
    def iteration_ns(self) -> Ints:
        """The time of each iteration, (I,)."""
        begins_ns = np.stack([worker.starts_ns for worker in self.workers])
        return iteration_times_ns(begins_ns, np.stack([worker.ends_ns for worker in self.workers]))


def load_recorded(run: Run) -> Recorded:
    """Load a run for analysis; UserError in one line if nothing can be analysed."""
    config = run.config if run.has_config else {}
    try:
        check_servers(run.events, config.get("servers", 0))
        found = recorded(run.events, run.aligned, config, run.fused)
        routed = read_routed(run.directory)
        notes = [*found.notes, *routed.notes, *_order_notes(run.directory)]
        return replace(found, routed=routed, notes=notes)
    except UserError as error:
        raise run.refusal(error) from None


def recorded(
    own_clocks: Sequence[Events], aligned: Aligned, config: Mapping[str, Any], fused: Fused = ALONE
) -> Recorded:
    """Prepare ``own_clocks``, events that each machine stamped with its own clock.

    ``aligned``: the same events on one clock. ``fused``: which gradients shared buffers.
    """
    numbers = _common(own_clocks)
    if not numbers:
        raise UserError("no iteration was recorded completely by all workers")
    numbers = numbers[min(sum(number <= _WARMUP for number in numbers), len(numbers) // 2) :]
    events = on_one_clock(aligned.events, wall_clock(aligned.events))
    if _local_ranks(config) > 1:
        events = [table for table in events if table.table is not SERVED_TABLE]
    served, server, first_row = _served(events)
    _check_all_there(events, served)
    where = {events[index].origin.rank: at for index, at in served_rows(events).items()}
    workers = []
    for tables, own_tables in zip(_by_worker(events), _by_worker(own_clocks), strict=True):
        one = next(iter(tables.values()))
        rank, bounds = one.origin.rank, _bounds(tables)
        times_ns = np.array([bounds[number] for number in numbers], np.int64)
        transfers = _rows(tables, TRANSFERS)
        at = _served_at(where[rank], first_row) if rank in where else np.zeros(0, np.int64)
        order = np.argsort(transfers["pulled_ns"], kind="stable")
        workers.append(
            Worker(
                rank=rank,
                role=one.origin.role,
                spans=_in_order(_rows(tables, SPANS)),
                names=tables[SPANS.name].names if SPANS.name in tables else {},
                transfers=transfers[order],
                served=at[order],
                starts_ns=times_ns[:, 0],
                ends_ns=times_ns[:, 1],
                ahead_ns=int(times_ns[0, 0]) - _bounds(own_tables)[numbers[0]][0],
            )
        )
    tensors = {n: name for e in events if e.table is TRANSFERS for n, name in e.names.items()}
    return Recorded(
        config=config,
        workers=workers,
        iterations=np.array(numbers, np.int64),
        served=served,
        server=server,
        tensors=tensors,
        fused=fused,
        lost=sum(table.lost for table in events),
        cut_off=sorted({table.origin.role for table in events if not table.whole}),
        machines=[table.origin.machine for table in own_clocks],
        notes=[*_notes(workers, served, _local_ranks(config)), *clock_warnings(aligned)],
    )


def _check_all_there(events: Sequence[Events], served: Rows) -> None:
    """UserError if servers name workers that have no events, because those may have been late."""
    tables = [next(iter(tables.values())) for tables in _by_worker(events)]
    missing = set(distinct(served["worker"]).tolist()) - set(worker_numbers(tables))
    if missing:
        names = ", ".join(f"worker-{number}" for number in sorted(missing))
        raise UserError(f"servers served {names}, whose events are missing: add them")


def _local_ranks(config: Mapping[str, Any]) -> int:
    """Processes of each worker."""
    return int(config.get("local_ranks", 1))


def _by_worker(events: Sequence[Events]) -> list[dict[str, Events]]:
    """Each worker's tables by name, ordered by rank; it has one of each (``lives.py``)."""
    found: dict[int, dict[str, Events]] = {}
    for table in events:
        if table.table in (SPANS, TRANSFERS):
            found.setdefault(table.origin.rank, {})[table.table.name] = table
    return [tables for _, tables in sorted(found.items())]


def _rows(tables: Mapping[str, Events], kind: TableKind) -> Rows:
    return tables[kind.name].rows if kind.name in tables else np.zeros(0, kind.dtype)


def _common(events: Sequence[Events]) -> list[int]:
    """Numbers of the iterations that all workers have."""
    found = [set(_bounds(tables)) for tables in _by_worker(events)]
    return sorted(set.intersection(*found)) if found else []


def _served(events: Sequence[Events]) -> tuple[Rows, Ints, Mapping[int, int]]:
    """All rows, the server of each, and the first row of each table by the table's index."""
    first_row, rows, owners, count = {}, [np.zeros(0, SERVED)], [np.zeros(0, np.int64)], 0
    for index, table in enumerate(events):
        if table.table is SERVED_TABLE:
            first_row[index] = count
            rows.append(table.rows)
            owners.append(np.full(len(table.rows), table.origin.rank))
            count += len(table.rows)
    return np.concatenate(rows), np.concatenate(owners), first_row


def _served_at(where: tuple[Ints, Ints], first_row: Mapping[int, int]) -> Ints:
    """Rows among those of all servers, from indices of tables and rows in them."""
    tables, rows = where
    firsts = np.array([first_row.get(index, 0) for index in tables.tolist()], np.int64)
    at: Ints = np.where(tables >= 0, firsts + rows, -1)
    return at


def _bounds(tables: Mapping[str, Events]) -> dict[int, tuple[int, int]]:
    """Start and end by iteration; if there are no spans, from ready gradients."""
    rows = _rows(tables, SPANS)
    rows = rows[(rows["kind"] == Kind.ITERATION) & (rows["begin_ns"] > 0)]
    rows = rows[rows["begin_ns"] < rows["end_ns"]]
    if len(rows):
        bounds = rows[["iteration", "begin_ns", "end_ns"]].tolist()
        return {number: (begin_ns, end_ns) for number, begin_ns, end_ns in bounds}
    rows = _rows(tables, TRANSFERS)
    rows = rows[(rows["iteration"] > 0) & (rows["ready_ns"] > 0)]
    rows = rows[np.lexsort((rows["ready_ns"], rows["iteration"]))]
    numbers, first = np.unique(rows["iteration"], return_index=True)
    first_ns = dict(zip(numbers.tolist(), rows["ready_ns"][first].tolist(), strict=True))
    return {
        number: (begin_ns, first_ns[number + 1])
        for number, begin_ns in first_ns.items()
        if first_ns.get(number + 1, 0) > begin_ns
    }


def _in_order(rows: Rows) -> Rows:
    """Spans with known times, ordered by begin."""
    rows = rows[(rows["begin_ns"] > 0) & (rows["end_ns"] >= rows["begin_ns"])]
    return rows[np.argsort(rows["begin_ns"], kind="stable")]


def _order_notes(run_directory: Path) -> list[str]:
    """That the last plan in force had gradients go in order of arrival, if it did."""
    try:
        told = read_told(run_directory)
    except UserError:  # the replay, which needs more of it, says what is wrong
        return []
    if told.settings.get("in_order") != 1:
        return []
    return [
        f"gradients went in order of arrival from iteration {told.settled_from + 1} on, as under "
        "fifo, because the processor was the limit and no order could gain: see byteprophet plan"
    ]


def _notes(workers: Sequence[Worker], served: Rows, local_ranks: int) -> list[str]:
    notes = []
    collectives = any((worker.spans["kind"] == Kind.COLLECTIVE).any() for worker in workers)
    if not all(len(worker.spans) for worker in workers):
        notes.append(
            "no spans: the workers' computation is not known; an iteration is taken to last from "
            "its first ready gradient to the next iteration's"
        )
    elif all(has_steps_alone(worker.spans) for worker in workers):
        notes.append(
            "several optimizers: the step of each one counts as an iteration here, so a step of "
            "the script is several iterations, which need not be equally long"
        )
    sent = [len(worker.transfers) > 0 for worker in workers]
    if not collectives and not (any(sent) if local_ranks > 1 else all(sent)):
        notes.append(
            "no transfers: it is not known when gradients were sent and came back (stock records "
            "none)"
        )
    if local_ranks > 1:
        notes.append(
            "several local ranks: the servers' tables are ignored, because servers number only the "
            "processes that talk to them; pushes are taken to end with their acknowledgement, and "
            "sums and the workers that came last are not known"
        )
    elif not collectives and not len(served):
        notes.append(
            "servers recorded nothing: pushes are taken to end with their acknowledgement, and "
            "sums and the workers that came last are not known"
        )
    return notes
