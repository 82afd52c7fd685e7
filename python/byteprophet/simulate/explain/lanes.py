"""What pipeline ranks do over time, as lanes for the page and for Perfetto.

A pipeline rank computes, and waits for transfers: one lane per kind of transfer. Its data-parallel
and tensor-parallel ranks do the same at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from byteprophet.simulate.execute.result import Simulated
from byteprophet.simulate.explain.critical_path import CriticalPath
from byteprophet.simulate.explain.operations import What
from byteprophet.timeline.role_lanes import Lane

COMPUTES = "computes"
Int64Array = npt.NDArray[np.int64]


def lanes(result: Simulated, operations: dict[int, What], path: CriticalPath) -> list[Lane]:
    """The critical path, and the lanes of all pipeline ranks."""
    rows: dict[tuple[int, str], list[int]] = defaultdict(list)
    for operation, what in operations.items():
        rows[what.rank, COMPUTES if what.computes else what.act].append(operation)
    found = [_path(path)]
    for rank, label in sorted(rows, key=lambda key: (key[0], key[1] != COMPUTES, key[1])):
        which = rows[rank, label]
        begins_ns, ends_ns = result.replayed.start_ns[which], result.replayed.end_ns[which]
        sizes = _sizes(result, which)
        kinds = tuple(operations[each].act for each in which)
        names = tuple(operations[each].of for each in which)
        lane = Lane(role_of(rank), label, begins_ns, ends_ns, kinds, names, sizes)
        found.append(lane.at(ends_ns > begins_ns))
    return [lane for lane in found if len(lane)]


def _sizes(result: Simulated, which: Sequence[int]) -> Int64Array:
    """The bytes of operations; 0 for those that are not transfers."""
    graph, of = result.job.graph, result.job.unit_bytes
    units = [of.get(device, 0.0) for device in graph.device[which].tolist()]
    sizes: Int64Array = np.round(graph.size_bytes[which] * np.array(units)).astype(np.int64)
    return sizes


def _path(path: CriticalPath) -> Lane:
    steps = path.steps
    return Lane(
        "critical path",
        "",
        np.array([step.begin_ns for step in steps], np.int64),
        np.array([step.end_ns for step in steps], np.int64),
        tuple(step.act for step in steps),
        tuple(f"{role_of(step.rank)}: {step.first}" for step in steps),
        np.zeros(len(steps), np.int64),
    )


def role_of(rank: int) -> str:
    """The name of a pipeline rank."""
    return f"rank-{rank}"


def last_part(all_lanes: Sequence[Lane], end_ns: int, most: int) -> tuple[int, list[Lane]]:
    """As much of the end of the iteration as ``most`` slices show, and when it begins."""
    begins_ns = np.sort(np.concatenate([lane.begin_ns for lane in all_lanes]))
    begin_ns = int(begins_ns[-most]) if len(begins_ns) > most else 0
    kept = [lane.within(begin_ns, end_ns) for lane in all_lanes]
    return begin_ns, [lane for lane in kept if len(lane)]
