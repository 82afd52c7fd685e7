"""Prepares evidence for the linear programs.

Machines are numbered, clocks are roughly aligned, and evidence is sorted by what answers it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from byteprophet.timeline.alignment_evidence import Int64s, binding
from byteprophet.timeline.linear_program import Floats

Pair = tuple[int, int]
"""The machine of the causes and the machine of the effects."""

_SIZES = 16  # per pair of machines, the number of message sizes whose smallest delays are compared
_PARTS = 32  # of a recording: enough to fit a line, and each has some messages that did not queue


@dataclass(frozen=True)
class Stamps:
    """Evidence of one kind between two machines, in nanoseconds on roughly aligned clocks."""

    pair: Pair
    times_ns: Int64s  # of the causes
    delays_ns: Int64s  # from there to the effects
    sizes: Int64s
    minimum_ns: int

    def only(self, chosen: npt.NDArray[np.generic]) -> Stamps:
        """The rows that ``chosen`` selects, by indices or as a mask."""
        columns = (self.times_ns[chosen], self.delays_ns[chosen], self.sizes[chosen])
        return Stamps(self.pair, *columns, self.minimum_ns)

    def fastest(self, delays_ns: Floats, half_ns: int) -> Stamps:
        """The row with the smallest of ``delays_ns`` in each part of the recording.

        The recording lasts ``2 * half_ns``.
        """
        part = ((self.times_ns + half_ns) * _PARTS // (2 * half_ns)).clip(0, _PARTS - 1)
        order = np.lexsort((delays_ns, part))
        return self.only(order[np.unique(part[order], return_index=True)[1]])

    def tightest(self, slope_limit: float) -> Stamps:
        """The rows that ``binding`` selects: those that can be the tightest bounds."""
        return self.only(binding(self.times_ns, self.delays_ns, slope_limit))


@dataclass(frozen=True)
class Answers:
    """Evidence by what answers it.

    ``alike``: each list has the transfers of one size in both directions between two machines, or
    all their transfers if no size went both ways. The smallest one-way delays of both directions
    are assumed to be equal. ``circles``: evidence that is answered only via other machines.
    ``unanswered``: the rest, which bounds clocks on one side only.
    """

    alike: list[list[Stamps]]
    circles: list[list[Stamps]]
    unanswered: list[Stamps]


def answers(count: int, stamps: Sequence[Stamps]) -> Answers:
    """Sorts the ``stamps`` of ``count`` machines by what answers them."""
    between: defaultdict[Pair, list[Stamps]] = defaultdict(list)
    for each in stamps:
        between[each.pair].append(each)
    graph = graph_of(count, between)
    _, circle_of = connected_components(graph, connection="strong")
    alike: list[list[Stamps]] = []
    circles: defaultdict[int, list[Stamps]] = defaultdict(list)
    unanswered: list[Stamps] = []
    for (a, b), there in between.items():
        if (b, a) in between:
            if a < b:  # each pair of machines once, and no machine with itself
                alike.extend(_of_equal_size(there, between[b, a]))
        elif circle_of[a] == circle_of[b]:
            circles[circle_of[a]].extend(there)
        else:
            unanswered.extend(there)
    return Answers(alike, list(circles.values()), unanswered)


def graph_of(count: int, pairs: Iterable[Pair]) -> coo_array:
    """``count`` machines as a directed graph with an edge from cause to effect."""
    edges: npt.NDArray[np.intp] = np.array(sorted(set(pairs)), np.intp).reshape(-1, 2)
    return coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(count, count))


def _of_equal_size(there: list[Stamps], back: list[Stamps]) -> Iterator[list[Stamps]]:
    counts = [_sizes(direction) for direction in (there, back)]
    # The intersection of two counters keeps the smaller counts.
    both = sorted((counts[0] & counts[1]).items(), key=lambda item: (-item[1], item[0]))
    for size, _ in both[:_SIZES]:
        yield [each.only(each.sizes == size) for each in there + back]
    if not both:
        yield there + back


def _sizes(direction: list[Stamps]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for each in direction:
        sizes, times = np.unique(each.sizes, return_counts=True)
        counts.update(dict(zip(sizes.tolist(), times.tolist(), strict=True)))
    return counts
