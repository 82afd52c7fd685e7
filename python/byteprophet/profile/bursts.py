"""Finds the bursts of a profile: which gradients the framework releases together.

Ready times in ascending order are fitted by steps: the partition into runs that minimises

    sum over runs of (squared deviations from the run's mean) / noise^2  +  runs * 2 ln n

which is Schwarz' criterion for a mean and a boundary per run, and is found exactly by dynamic
programming. ``noise`` is what cannot be told apart: the spread of the gaps between neighbours over
iterations, and at least the resolution, as gradients released at one moment still pass hooks and
copies one after the other. Nothing is assumed about the number of steps or their distance; two runs
of m tensors each are told apart from a distance of about noise * sqrt(4 ln(n) / m).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

RESOLUTION_NS = 500_000
"""Half of the millisecond that the policy itself allows for late wake-ups."""
_RESOLUTION_SHARE = 0.002
"""Of the time from the first to the last: finer steps make no difference to a plan."""


def robust_spread(values: npt.NDArray[np.float64], axis: int = 0) -> npt.NDArray[np.float64]:
    """1.4826 times the median absolute deviation along ``axis``; NaN counts as absent."""
    middle = np.nanmedian(values, axis=axis, keepdims=True)
    spread: npt.NDArray[np.float64] = 1.4826 * np.nanmedian(np.abs(values - middle), axis=axis)
    return spread


def noise_ns(ready_ns: npt.NDArray[np.float64]) -> float:
    """What cannot be told apart; ``ready_ns`` has a row per iteration, a column per tensor."""
    order = np.argsort(np.nanmedian(ready_ns, axis=0), kind="stable")
    middle = np.nanmedian(ready_ns, axis=0)[order]
    floor = max(RESOLUTION_NS, _RESOLUTION_SHARE * float(middle[-1] - middle[0]))
    if ready_ns.shape[1] < 2:
        return floor
    gaps = np.diff(ready_ns[:, order], axis=1)
    return max(floor, float(np.nanmedian(robust_spread(gaps))))


def find_bursts(ready_ns: npt.NDArray[np.float64], noise: float) -> npt.NDArray[np.int64]:
    """The number of each tensor's burst, from 0 in the order in which bursts come.

    ``ready_ns``: when each tensor becomes ready, in any order; ``noise``: see above, above 0.
    """
    count = len(ready_ns)
    order = np.argsort(ready_ns, kind="stable")
    times = (ready_ns[order] - ready_ns[order[0]]) / noise
    sums = np.concatenate([[0.0], np.cumsum(times)])
    squares = np.concatenate([[0.0], np.cumsum(times**2)])
    penalty = 2 * np.log(max(count, 2))
    best = np.zeros(count + 1)
    start = np.zeros(count + 1, np.int64)
    for end in range(1, count + 1):
        first = np.arange(end)
        deviation = squares[end] - squares[first] - (sums[end] - sums[first]) ** 2 / (end - first)
        costs = best[first] + np.maximum(deviation, 0) + penalty
        start[end] = np.argmin(costs)
        best[end] = costs[start[end]]
    bursts = np.zeros(count, np.int64)
    boundaries = []
    end = count
    while end > 0:
        boundaries.append(int(start[end]))
        end = int(start[end])
    for number, begin in enumerate(reversed(boundaries)):
        bursts[order[begin:]] = number
    return bursts
