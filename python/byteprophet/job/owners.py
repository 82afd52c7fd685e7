"""Who owns what of each tensor in a job without servers.

The owner of an element sums it over all ranks, and sends the result to all. Rank r owns the
elements from n B(r) / B(P) to n B(r + 1) / B(P) of each tensor's n, rounded down, where B(r) is the
sum of the weights of the ranks before r (native/exchange/shares.h). A rank of weight 0 owns
nothing. A rank with the share s of all weights sends, and receives, 1 + (P - 2) s of a tensor's
bytes in an all-reduce, so a rank with a slow link should own less.

With unequal owners, a slow link is busy in one direction with reduce-scatters, and in the other one
with all-gathers. So an all-reduce of a large bucket goes in *chunks*, and a chunk is all-gathered
while the next one is still being reduced. With equal owners, both halves load all links alike in
both directions, and chunks would gain nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from math import gcd

from byteprophet.errors import UserError

MOST_WEIGHT = 1 << 30
"""The largest sum of all weights (``kMostWeight`` in native/exchange/shares.h)."""

MOST_CHUNK_BYTES = 2 << 20
"""On four links, a frame of the mesh still has its full 256 KiB."""
LEAST_CHUNK_BYTES = 256 << 10
"""Smaller chunks cost more than they gain: about 0.1 ms of a core each."""
_ENOUGH_CHUNKS = 64
"""In so many, a bucket's all-gather ends a 64th of the bucket's time behind its reduce-scatter."""


@dataclass(frozen=True)
class Owners:
    """One weight for each rank, without a common divisor."""

    weights: tuple[int, ...]

    @classmethod
    def equal(cls, ranks: int) -> Owners:
        """All ranks own equally much."""
        return cls((1,) * ranks)

    @classmethod
    def of(cls, weights: Iterable[int], ranks: int) -> Owners:
        """``weights`` as owners of a job of ``ranks`` ranks. No weights: equal ones.

        Raises ``UserError`` if they are of another number of ranks, or no weights.
        """
        given = tuple(weights)
        check_weights(given)
        if given and len(given) != ranks:
            raise UserError(
                f"owners {text_of(given)}: {len(given)} weights for {ranks} ranks: give one for "
                "each rank"
            )
        divisor = gcd(*given)
        return cls(tuple(weight // divisor for weight in given)) if given else cls.equal(ranks)

    @cached_property
    def are_equal(self) -> bool:
        """Whether all ranks own equally much."""
        return len(set(self.weights)) == 1

    @property
    def unequal(self) -> tuple[int, ...]:
        """The weights as ``of`` takes them and strategies have them: none if all are equal."""
        return () if self.are_equal else self.weights

    @cached_property
    def shares(self) -> tuple[Fraction, ...]:
        """The share of each rank; they add up to 1."""
        return tuple(Fraction(weight, self._before[-1]) for weight in self.weights)

    def shard(self, elements: int, rank: int) -> slice:
        """The range that ``rank`` owns of so many elements, in memory order."""
        first, end, all_ = self._before[rank], self._before[rank + 1], self._before[-1]
        return slice(elements * first // all_, elements * end // all_)

    def sizes(self, size_bytes: int) -> tuple[int, ...]:
        """How many of so many bytes each rank owns."""
        ends = [size_bytes * before // self._before[-1] for before in self._before]
        return tuple(end - first for first, end in pairwise(ends))

    def chunks(self, elements: int, size_bytes: int) -> list[slice]:
        """The chunks of an all-reduce of so many elements, which have ``size_bytes`` together."""
        wanted = -(-size_bytes // _ENOUGH_CHUNKS)
        chunk_bytes = min(MOST_CHUNK_BYTES, max(LEAST_CHUNK_BYTES, wanted))
        count = 1 if self.are_equal else max(1, -(-size_bytes // chunk_bytes))
        ends = [elements * number // count for number in range(count + 1)]
        return [slice(first, end) for first, end in pairwise(ends)]

    @cached_property
    def _before(self) -> tuple[int, ...]:
        return (0, *accumulate(self.weights))


def parse_weights(text: str, name: str) -> tuple[int, ...]:
    """The weights in a text such as ``1,1,1,0``; ``name`` is what errors call it.

    Raises ``UserError`` if it is not a list of weights.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise UserError(f"{name} {text!r:.100}: use one whole number for each rank, as 1,1,1,0")
    weights = tuple(int(part[:20]) for part in parts)
    check_weights(weights)
    return weights


def text_of(weights: Iterable[int]) -> str:
    """What ``parse_weights`` reads."""
    return ",".join(map(str, weights))


def check_weights(weights: tuple[int, ...]) -> None:
    """Raises ``UserError`` if these are not weights. None at all are equal ones."""
    if not weights:
        return
    if any(type(weight) is not int or weight < 0 for weight in weights):
        raise UserError(f"owners {text_of(weights):.100}: weights are whole numbers from 0 on")
    if not any(weights):
        raise UserError(f"owners {text_of(weights):.100}: all weights are 0, so nobody would sum")
    if sum(weights) > MOST_WEIGHT:
        raise UserError(f"owners {text_of(weights):.100}: weights add up to more than 2^30")
