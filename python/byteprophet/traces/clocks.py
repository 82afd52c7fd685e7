"""Puts the traces of ranks on one clock.

A collective ends on all ranks at nearly one time, so the recorded ends of those that several ranks
recorded tell how far their clocks are apart. Only the first tasks of a rank depend on that. But if
much more time passes between two collectives on one rank than on another, the clocks do not run
alike, or the traces are of different jobs, and no replay can be right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.traces.matching import Meeting
from byteprophet.traces.work import RankTrace

Int64Array = npt.NDArray[np.int64]

_MOST_APART = 0.15
"""By how much the time between the first and the last collective may differ. Between ranks on a
busy machine, 5% were measured in traces of four steps; other jobs differ by far more."""


def origins(traces: Sequence[RankTrace], together: Sequence[Meeting]) -> tuple[int, ...]:
    """The time of each trace that is 0 in the replay, in nanoseconds.

    Raises ``UserError`` if more time passes on one rank than on another.
    """
    ends: list[list[tuple[int, int]]] = [[] for _ in traces]  # here, and of the first trace
    steps: list[set[int]] = [set() for _ in traces]
    for meeting in together:
        tasks = {index: traces[index].tasks[place] for index, place in meeting.tasks}
        for index, task in tasks.items():
            if index and 0 in tasks:
                ends[index].append((task.end_ns, tasks[0].end_ns))
                steps[index].add(task.step)
    firsts = [trace.tasks[0].begin_ns if trace.tasks else 0 for trace in traces]
    offsets = []
    for index, trace in enumerate(traces):
        if not ends[index]:
            offsets.append(firsts[index] - firsts[0])
            continue
        here = np.array(ends[index], dtype=np.int64)
        if len(steps[index]) > 1 and trace.has_times and traces[0].has_times:
            _check(trace, traces[0], here)
        offsets.append(round(float(np.median(here[:, 0] - here[:, 1]))))
    origin_ns = min(first - offset for first, offset in zip(firsts, offsets, strict=True))
    return tuple(origin_ns + offset for offset in offsets)


def _check(trace: RankTrace, first: RankTrace, ends: Int64Array) -> None:
    """Refuses traces in which different times pass. ``ends``: of collectives, of either trace."""
    passed, of_first = np.ptp(ends, axis=0).tolist()
    if max(passed, of_first) > (1 + _MOST_APART) * min(passed, of_first):
        raise UserError(
            f"{trace.path}: {passed / 1e6:.1f} ms pass from the first to the last collective that "
            f"it has in common with {first.path}, and {of_first / 1e6:.1f} ms there: give traces "
            "of one job, with clocks that run alike"
        )
