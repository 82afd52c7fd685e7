"""Measures what a recorded worker sent: tensors, their sizes, their partitions and servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from byteprophet.errors import UserError
from byteprophet.job.fused_file import ALONE, Fused
from byteprophet.job.strategy import Keys
from byteprophet.job.times import Int64Array
from byteprophet.measure.keys import measure_keys
from byteprophet.order_statistics import distinct, groups, median
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import (
    SERVED_TABLE,
    TRANSFERS,
    Kind,
    Rows,
    TableKind,
    tensor_of,
)

_MOST_TIMES = 1 << 24
_FEW_SERVERS = 64  # idle ones, to which no key is sent, cost a replay little


def layer_of(name: str, layers: Mapping[str, int]) -> int:
    """Index of the layer called ``name``, or of the layer of that parameter; else 0."""
    while name not in layers and "." in name:
        name = name.rpartition(".")[0]
    return layers.get(name, 0)


@dataclass(frozen=True)
class Tensors:
    """In forward order. ``numbers``: BytePS' numbers of the tensors.

    ``parameters``: those of each tensor; several if small gradients shared a buffer.
    ``partition_bytes``, ``keys``, ``settled_from``: as ``MeasuredKeys`` has them. ``compressed``:
    the names of those for which the script has chosen one of BytePS' compressors.
    """

    names: tuple[str, ...]
    size_bytes: tuple[int, ...]
    numbers: tuple[int, ...]
    parameters: tuple[tuple[str, ...], ...]
    partition_bytes: int | None
    keys: tuple[Keys, ...]
    settled_from: int
    compressed: tuple[str, ...] = ()


def measure_tensors(
    transfers: Events,
    fused: Fused = ALONE,
    servers: int = 1,
    own_bytes: Mapping[str, int] | None = None,
) -> Tensors:
    """Measure what one worker sent to ``servers``, since gradients share the last buffers.

    ``own_bytes``: the sizes of gradients in their own type, by parameter, as far as they are known.
    UserError if the forward order has gaps.
    """
    rows = transfers.rows
    rows = rows[(rows["priority"] < 0) & (rows["iteration"] > max(0, fused.since - 1))]
    places = -1 - rows["priority"].astype(np.int64)
    iterations = rows["iteration"].astype(np.int64)
    sizes = _sizes(places, iterations, rows["size_bytes"].astype(np.int64))
    if not len(rows) or len(sizes) <= places.max():
        raise UserError("transfers: some tensors have no place in the forward order")
    # From the last iteration that sent the tensor; one that was cut off may have half of it.
    latest = np.array([median(of[-3:]) for of in sizes]).astype(np.int64)
    # The last tensor with each place: places are announced after the first iteration.
    _, last = np.unique(places[::-1], return_index=True)
    numbers = tensor_of(rows[::-1][last]).tolist()
    names = [transfers.names.get(number, "") for number in numbers]
    parameters = tuple(fused.of(name) for name in names)
    compressed = _compressed(latest.tolist(), parameters, own_bytes or {})
    keys = measure_keys(rows, names, latest.tolist(), numbers, servers, compressed)
    return Tensors(
        tuple(names),
        tuple(latest.tolist()),
        tuple(numbers),
        parameters,
        keys.partition_bytes,
        keys.keys,
        max(keys.settled_from, fused.since - 1),
        tuple(names[place] for place in compressed),
    )


def _compressed(
    sizes_bytes: Sequence[int],
    parameters: Sequence[Sequence[str]],
    own_bytes: Mapping[str, int],
) -> list[int]:
    """Places of tensors that BytePS compresses: they travel in another size than their own.

    If all of them travel in half of it, they were cast instead, before BytePS cut them.
    """
    known = {
        place: sum(own_bytes[each] for each in held)
        for place, held in enumerate(parameters)
        if own_bytes.keys() >= set(held)
    }
    if all(size_bytes == 2 * sizes_bytes[place] for place, size_bytes in known.items()):
        return []
    return [place for place, size_bytes in known.items() if size_bytes != sizes_bytes[place]]


def _sizes(places: Int64Array, iterations: Int64Array, size_bytes: Int64Array) -> list[Int64Array]:
    """For each place, the bytes of every iteration that sent any, one after another.

    Arrays grow with the rows, not with the numbers of iterations, which may be arbitrary.
    """
    order = np.lexsort((iterations, places))
    places, iterations = places[order], iterations[order]
    begins = (np.diff(places, prepend=-1) != 0) | (np.diff(iterations, prepend=-1) != 0)
    first = np.flatnonzero(begins)
    sums = np.add.reduceat(size_bytes[order], first) if len(first) else size_bytes
    of, sums = places[first][sums > 0], sums[sums > 0]
    return np.split(sums, np.flatnonzero(np.diff(of)) + 1) if len(sums) else []


def whole_iterations(spans: Rows) -> Int64Array:
    """Numbers of the iterations with a span, ascending; UserError if one has several spans."""
    recorded = spans["iteration"][spans["kind"] == Kind.ITERATION]
    numbers, counts = np.unique(recorded, return_counts=True)
    if (counts > 1).any():
        raise UserError(f"iteration {numbers[counts > 1][0]} was recorded more than once")
    found: Int64Array = numbers.astype(np.int64)
    return found


def has_steps_alone(spans: Rows) -> bool:
    """Whether a second step was recorded, but no iteration: several optimizers have none."""
    return bool((spans["iteration"] > 1).any() and (spans["kind"] != Kind.ITERATION).all())


def by_iteration(rows: Rows) -> dict[int, Rows]:
    """The rows of each iteration by its number, in the order in which they are in ``rows``."""
    numbers = rows["iteration"]
    return {int(numbers[each[0]]): rows[each] for each in groups(numbers)}


def iterations_since(spans: Sequence[Events], since: int) -> list[int]:
    """The last consecutive numbers, at least ``since``, that all ranks recorded completely."""
    common = set.intersection(*(set(whole_iterations(e.rows).tolist()) for e in spans))
    if not common:
        raise UserError("no iteration was recorded completely")
    last = first = max(common)
    while first - 1 in common and first > since:
        first -= 1
    if last < since:
        raise recorded_too_early("buckets", since)
    return [*range(first, last + 1)]


def place_since(settled_from: int, numbers: Sequence[int]) -> int:
    """The place in ``numbers`` of the first iteration that ran with the job's last settings.

    ``numbers``: of the measured iterations, consecutive. ``settled_from``: 0-based index of that
    iteration in the job. UserError if it is after all of ``numbers``.
    """
    if settled_from >= numbers[-1]:
        raise recorded_too_early("settings", settled_from + 1)
    return max(0, settled_from + 1 - numbers[0])


def recorded_too_early(what: str, since: int) -> UserError:
    """The error of a job whose last ``what``, in use from iteration ``since`` on, are unknown."""
    return UserError(
        f"its last {what} were used from iteration {since} on, and no iteration was recorded "
        "since then: record more iterations"
    )


def by_rank(recorded: Sequence[Events], table: TableKind, ranks: range) -> list[Events]:
    """The table of each of ``ranks``, over all lives; UserError if a rank has none."""
    found = {events.origin.rank: events for events in recorded if events.table is table}
    missing = [rank for rank in ranks if rank not in found]
    if missing:
        raise UserError(f"has no {table.name} of rank {missing[0]}: run the job with --record")
    check_ranks(found, range(ranks.stop))
    return [found[rank] for rank in ranks]


def check_ranks(recorded: Iterable[int], ranks: range) -> None:
    """UserError if there are events of a rank that the job did not have."""
    others = [rank for rank in recorded if rank not in ranks]
    if others:
        raise UserError(f"has events of rank {min(others)}, but config.toml has {len(ranks)} ranks")


def check_servers(recorded: Iterable[Events], servers: int) -> None:
    """UserError if ``config.toml`` has far more ``servers`` than keys were sent to any."""
    if servers <= _FEW_SERVERS:
        return
    tables = [each.rows["key"] for each in recorded if each.table in (TRANSFERS, SERVED_TABLE)]
    keys = len(distinct(np.concatenate(tables))) if tables else 0
    if tables and servers > max(_FEW_SERVERS, keys):
        raise UserError(
            f"config.toml has {servers} servers, but only {keys} keys were sent to any: is "
            "its number of servers right?"
        )


def check_extent(iterations: int, tensors: int) -> None:
    """UserError if the job is too long: times are kept for every iteration and tensor."""
    if iterations * tensors > _MOST_TIMES:
        raise UserError(
            f"{iterations} iterations of {tensors} tensors are too many to be replayed: record "
            "fewer, with --record-steps"
        )
