"""From iterations to a profile: medians, robust spreads, bursts, and when there are enough of them.

Enough: for nine tensors in ten, the standard error of the median ready time (1.2533 spreads over
the root of the number of iterations) is at most 0.5% of the time from the first to the last
gradient, or a quarter of a millisecond, whichever is more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from byteprophet.profile.bursts import find_bursts, noise_ns, robust_spread
from byteprophet.profile.drift import DriftDetector
from byteprophet.profile.iterations import Iteration
from byteprophet.profile.model import Burst, Profile, TensorProfile

_ERROR_OF_MEDIAN = 1.2533  # its standard error over that of the mean
_SHARE = 0.005
_LEAST_NS = 250_000
_TENSORS_PERCENT = 90


@dataclass(frozen=True)
class Forward:
    """One forward pass: when it ended, on the monotonic clock, and what it took, waits left out.

    ``times_ns``: the time from where the tensor at a forward position was needed to where the next
    was, by position. ``batch_size``: of the model's first input, if that has one.
    """

    iteration: int
    ended_ns: int
    times_ns: Mapping[int, int]
    batch_size: int | None


@dataclass(frozen=True)
class Sample:
    """One iteration, and its forward pass where that was seen."""

    gradients: Iteration
    forward: Forward | None


def is_enough(samples: Sequence[Sample]) -> bool:
    """Whether the ready times are known well enough; all samples have the same tensors."""
    ready = _ready(samples)
    errors = _ERROR_OF_MEDIAN * robust_spread(ready) / np.sqrt(len(samples))
    allowed = max(_LEAST_NS, _SHARE * float(np.median(ready, axis=0).max()))
    return float(np.percentile(errors, _TENSORS_PERCENT)) <= allowed


def detector(samples: Sequence[Sample]) -> DriftDetector:
    """Tells when the job is no longer as in ``samples``."""
    ready = _ready(samples)
    tensors = samples[-1].gradients.tensors
    return DriftDetector(tensors, np.median(ready, axis=0), robust_spread(ready))


def estimate(
    samples: Sequence[Sample],
    names: Mapping[int, str],
    *,
    number: int,
    scheduler: str,
    workers: int,
    rank: int,
) -> Profile:
    """The profile of ``samples``, at least one, all with the same tensors."""
    ready = _ready(samples)
    middle, spread = np.median(ready, axis=0), robust_spread(ready)
    # Not from zero: the first tensor of an iteration need not be the same in each.
    middle -= middle.min()
    found = find_bursts(middle, noise_ns(ready))
    last = samples[-1].gradients
    order = np.lexsort((last.tensors, -last.priority.astype(np.int64)))
    positions = -1 - last.priority.astype(np.int64)[order]
    forward_ns = _forward_ns(samples, positions)
    tensors = tuple(
        TensorProfile(
            name=names.get(int(last.tensors[at]), f"tensor {int(last.tensors[at])}"),
            size_bytes=int(last.size_bytes[at]),
            forward_order=place,
            ready_ns=int(middle[at]),
            spread_ns=int(spread[at]),
            forward_ns=int(forward_ns[place]),
            burst=int(found[at]),
        )
        for place, at in enumerate(order)
    )
    batches = [s.forward.batch_size for s in samples if s.forward and s.forward.batch_size]
    return Profile(
        number=number,
        scheduler=scheduler,
        workers=workers,
        rank=rank,
        iterations=len(samples),
        batch_size=int(np.median(batches)) if batches else None,
        forward_ns=sum(tensor.forward_ns for tensor in tensors),
        backward_ns=max(_backward_ns(samples), max(tensor.ready_ns for tensor in tensors)),
        tensors=tensors,
        bursts=tuple(_burst(tensors, burst) for burst in range(int(found.max()) + 1)),
    )


def _ready(samples: Sequence[Sample]) -> npt.NDArray[np.float64]:
    """A row per sample, a column per tensor."""
    return np.array([sample.gradients.ready_ns for sample in samples], np.float64)


def _forward_ns(
    samples: Sequence[Sample], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Per tensor, in forward order; times at positions between go to the tensor before."""
    rows = []
    for sample in samples:
        if sample.forward is not None:
            row = np.zeros(len(positions))
            for position, time_ns in sample.forward.times_ns.items():
                row[max(0, np.searchsorted(positions, position, side="right") - 1)] += time_ns
            rows.append(row)
    middle: npt.NDArray[np.float64] = np.median(rows, axis=0) if rows else np.zeros(len(positions))
    return middle


def _backward_ns(samples: Sequence[Sample]) -> int:
    times = [
        sample.gradients.last_ready_ns - sample.forward.ended_ns
        for sample in samples
        if sample.forward is not None
    ]
    return int(np.median(times)) if times else 0


def _burst(tensors: Sequence[TensorProfile], number: int) -> Burst:
    members = [tensor for tensor in tensors if tensor.burst == number]
    return Burst(
        ready_ns=min(tensor.ready_ns for tensor in members),
        spread_ns=int(np.median([tensor.spread_ns for tensor in members])),
        tensors=len(members),
        size_bytes=sum(tensor.size_bytes for tensor in members),
    )
