"""Small backward passes of which each operation completes several gradients, drawn by lot."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt

from byteprophet.graph import GraphBuilder
from byteprophet.optimize.serial_backward import SerialBackward
from byteprophet.replay import replay


@dataclass(frozen=True)
class Chain:
    """A backward pass, the buckets of its gradients, and the forward pass that follows.

    Attributes:
        compute: the time of each operation.
        gradients: how many gradients each operation completes, at its end.
        sizes: of the gradients, in the order in which they are complete.
        cuts: the gradients with which a bucket begins; the first begins one, too.
        curve: the time that the link needs for a size.
        forward: the time of each operation's layer.
        by_layer: whether layers wait for their own gradients only.
    """

    compute: tuple[int, ...]
    gradients: tuple[int, ...]
    sizes: tuple[int, ...]
    cuts: frozenset[int]
    curve: Callable[[int], int]
    forward: tuple[int, ...]
    by_layer: bool

    @property
    def owners(self) -> list[int]:
        """The operation of each gradient."""
        return [n for n, count in enumerate(self.gradients) for _ in range(count)]

    @property
    def buckets(self) -> list[range]:
        """The gradients of each bucket."""
        edges = [0, *sorted(self.cuts), len(self.sizes)]
        return [range(a, b) for a, b in pairwise(edges)]

    def sync(self, bucket: range) -> int:
        """How long the link is busy with a bucket."""
        return self.curve(sum(self.sizes[gradient] for gradient in bucket))

    @property
    def ends(self) -> list[int]:
        """When each operation ends."""
        return [sum(self.compute[: n + 1]) for n in range(len(self.compute))]

    @property
    def serial(self) -> SerialBackward:
        """As the pass sees it."""
        ends, owners = self.ends, self.owners
        return SerialBackward(
            tuple(ends[owners[bucket[-1]]] for bucket in self.buckets),
            tuple(map(self.sync, self.buckets)),
            ends[-1],
        )

    def fused(self, first: int, last: int, time: int) -> Chain:
        """The chain in which operations ``first`` to ``last`` are one, which takes ``time``."""
        return Chain(
            (*self.compute[:first], time, *self.compute[last + 1 :]),
            (
                *self.gradients[:first],
                sum(self.gradients[first : last + 1]),
                *self.gradients[last + 1 :],
            ),
            self.sizes,
            self.cuts,
            self.curve,
            (*self.forward[:first], sum(self.forward[first : last + 1]), *self.forward[last + 1 :]),
            self.by_layer,
        )

    def played(self) -> int:
        """The end of its forward pass, by replay."""
        graph = GraphBuilder()
        device, link = graph.serial("compute"), graph.serial("link")
        computed: list[int] = []
        for time in self.compute:
            computed.append(graph.add("", time, device=device, after=computed[-1:]))
        owners, sent = self.owners, list[int]()
        for bucket in self.buckets:
            after = [computed[owners[bucket[-1]]], *sent[-1:]]
            sent.append(graph.add("", self.sync(bucket), device=link, after=after))
        last = computed[-1]
        for n in reversed(range(len(self.compute))):
            mine = [
                message
                for message, bucket in zip(sent, self.buckets, strict=True)
                if n in {owners[gradient] for gradient in bucket}
            ]
            after = [last, *(mine if self.by_layer else sent)]
            last = graph.add("", self.forward[n], device=device, after=after)
        return int(replay(graph.freeze()).end_ns[last])

    def __str__(self) -> str:
        buckets = [list(bucket) for bucket in self.buckets]
        waits = "its own gradients" if self.by_layer else "all gradients"
        return (
            f"operations take {list(self.compute)} and complete {list(self.gradients)} gradients; "
            f"buckets {buckets} take {[self.sync(bucket) for bucket in self.buckets]} on the link; "
            f"forward {list(reversed(self.forward))} waits for {waits}"
        )


def random_chain(seed: int, *, bare: bool) -> Chain:
    """A chain with times from 1 to 9. ``bare``: some operations have no gradients."""
    lot = random.Random(seed)
    count = lot.randint(2, 8)
    gradients = [0 if bare and lot.random() < 0.3 else lot.randint(1, 3) for _ in range(count)]
    gradients[0] = gradients[0] or 1
    sizes = tuple(lot.randint(1, 6) for _ in range(sum(gradients)))
    cost, limit = lot.randint(0, 4), lot.randint(3, 12)
    curve = lot.choice(
        (
            lambda size: cost + size,
            lambda size: cost + isqrt(4 * size),
            lambda size: cost + size + (5 if size > limit else 0),
        )
    )
    return Chain(
        tuple(lot.randint(1, 9) for _ in range(count)),
        tuple(gradients),
        sizes,
        frozenset(cut for cut in range(1, len(sizes)) if lot.random() < 0.5),
        curve,
        tuple(lot.randint(1, 5) for _ in range(count)),
        by_layer=lot.random() < 0.5,
    )
