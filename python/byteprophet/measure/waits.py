"""When training threads waited.

Any thread that reads a parameter whose update is outstanding waits for it, and records that: a
script's thread that writes checkpoints, or averages parameters. The training thread computes
meanwhile, so only waits in its own lanes count. Where waits overlap, their time counts once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from byteprophet.job.times import Int64Array
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import ALL_AVERAGES, Kind, Rows

Spans = tuple[Int64Array, Int64Array]
"""Begins and ends."""

_OF_TRAINING = (Kind.ITERATION, Kind.FORWARD, Kind.BACKWARD)


def in_training(rows: Rows) -> npt.NDArray[np.bool_]:
    """Which of the spans ``rows`` of a worker are in a lane of its training, (rows,).

    These are the lanes of iterations, of the device that runs layers, and of autograd's threads.
    """
    lanes = np.unique(rows["lane"][np.isin(rows["kind"], _OF_TRAINING)])
    found: npt.NDArray[np.bool_] = np.isin(rows["lane"], lanes)
    return found


def training_waits(rows: Rows) -> Spans:
    """When the training thread of the worker with the spans ``rows`` waited: disjoint, in order."""
    waits = rows[(rows["kind"] == Kind.WAIT) & in_training(rows)]
    waits = waits[waits["begin_ns"] < waits["end_ns"]]
    return union(waits["begin_ns"], waits["end_ns"])


def union(begin_ns: Int64Array, end_ns: Int64Array) -> Spans:
    """The times that any of the spans covers, as disjoint spans in order."""
    if not len(begin_ns):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(begin_ns, kind="stable")
    begins, ends = begin_ns[order], np.maximum.accumulate(end_ns[order])
    new = np.append(True, begins[1:] > ends[:-1])
    return begins[new], ends[np.append(new[1:], True)]


def waits_for_all(spans: Events, iterations: Collection[int]) -> bool:
    """Whether the worker with these spans needed all averages in most of ``iterations``.

    ``iterations``: their numbers.
    """
    named = [index for index, name in spans.names.items() if name == ALL_AVERAGES]
    rows = spans.rows[np.isin(spans.rows["name"], named)]
    return 2 * len({*rows["iteration"].tolist()} & {*iterations}) > len(iterations)


class Waits:
    """Disjoint spans in which a worker waited."""

    def __init__(self, spans: Spans) -> None:
        """``spans``: in order, as from ``training_waits``."""
        self._begins_ns, self._ends_ns = spans
        self._waited_ns = np.append(0, np.cumsum(self._ends_ns - self._begins_ns))

    def worked_ns(self, times_ns: Sequence[int]) -> Int64Array:
        """The time from each of ``times_ns`` to the next, less the waits in it.

        Shape (times - 1,); 0 if the next time is earlier.
        """
        times = np.array(times_ns, np.int64)
        begun = np.searchsorted(self._begins_ns, times)
        # The wait that began last may be longer.
        longer_ns = np.append(times.min(), self._ends_ns)[begun] - times
        worked_ns = np.diff(times - self._waited_ns[begun] + np.maximum(0, longer_ns))
        return np.where(np.diff(times) > 0, worked_ns, 0)
