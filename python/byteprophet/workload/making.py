"""Makes the gradients of a paced model, ahead of time where there is time.

The layers that backward runs first often have the most bytes and the least compute (a classifier,
an embedding's table at the other end): writing their gradients takes longer than the layer's
stated time. So gradients are written in the order in which backward needs them, piece by piece,
while layers wait out their time; what is not finished when its layer runs is finished there.

No accelerator's host would have this work, the thread that does it may run before all others
(``real_time.py``), and threads that exchange and update are busiest when forward begins. So it is
done evenly: at the lowest rate, the same from the first layer on, at which each gradient is there
when its layer runs.

One thread at a time; no locks. Gradients exist for one backward pass more than without this, from
the forward pass before it on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from byteprophet.workload.gradient import Patterns, coefficient
from byteprophet.workload.model import Tensor, Workload

PIECE_ELEMENTS = 1 << 18
"""One piece: 1 MiB, well below a millisecond unless the machine is overloaded."""


@dataclass(frozen=True)
class Quota:
    """How many elements of an iteration's gradients are to be there when a layer has run."""

    forward: int
    backward: int


def quotas(workload: Workload) -> list[Quota]:
    """Of the layers, in forward order."""
    tensors = workload.tensors
    forward_ends_ns = accumulate(tensor.forward_ns for tensor in tensors)
    backward_ends_ns = [workload.forward_ns + end_ns for end_ns in workload.backward_ends_ns()]
    rate = 0.0  # elements per nanosecond
    needed = 0
    for burst in reversed(workload.bursts()):
        needed += sum(tensors[position].elements for position in burst)
        begin_ns = backward_ends_ns[burst.start] - tensors[burst.start].backward_ns
        rate = max(rate, needed / max(1, begin_ns))

    def by(end_ns: int) -> int:
        return min(needed, math.ceil(rate * end_ns))

    ends_ns = zip(forward_ends_ns, backward_ends_ns, strict=True)
    return [Quota(by(forward_ns), by(backward_ns)) for forward_ns, backward_ns in ends_ns]


@dataclass
class _Gradient:
    """A gradient of which the first ``written`` elements are there."""

    values: torch.Tensor
    written: int = 0


class GradientMaker:
    """Gradients of ``tensors`` (in forward order) on one rank.

    Each is a new tensor that nobody else refers to once it was taken, so that autograd can hand it
    on without a copy.
    """

    def __init__(self, tensors: Sequence[Tensor], patterns: Patterns, rank: int) -> None:
        self._tensors = tensors
        self._patterns = patterns
        self._rank = rank
        self._iteration = 0
        self._begun: dict[int, _Gradient] = {}  # by position; not taken yet
        self._next = -1  # position that the next piece belongs to; -1: nothing to make
        self._made = 0  # elements of the iteration

    @property
    def iteration(self) -> int:
        """The iteration that was prepared last."""
        return self._iteration

    def prepare(self, iteration: int) -> None:
        """Make the gradients of ``iteration`` from now on, and forget those of others."""
        self._iteration = iteration
        self._begun = {}
        self._next = len(self._tensors) - 1
        self._made = 0

    def make_piece(self, quota: int) -> bool:
        """Write one piece; False if ``quota`` elements of the gradients, or all, are there."""
        if self._next < 0 or self._made >= quota:
            return False
        if self._next not in self._begun:
            self._begun[self._next] = self._empty(self._next)
        gradient = self._begun[self._next]
        self._write(gradient, self._next, self._iteration, PIECE_ELEMENTS)
        if gradient.written == gradient.values.numel():
            self._next -= 1
        return True

    def take(self, position: int, iteration: int) -> torch.Tensor:
        """The gradient of the tensor at ``position``, shape (elements,)."""
        gradient = None
        if iteration == self._iteration:
            gradient = self._begun.pop(position, None)
            self._next = min(self._next, position - 1)
        if gradient is None:
            gradient = self._empty(position)
        self._write(gradient, position, iteration, gradient.values.numel())
        return gradient.values

    def _empty(self, position: int) -> _Gradient:
        return _Gradient(torch.empty(self._tensors[position].elements, dtype=torch.float32))

    def _write(self, gradient: _Gradient, position: int, iteration: int, elements: int) -> None:
        """Write the next ``elements`` elements, or as many as are missing."""
        tensor = self._tensors[position]
        piece = slice(gradient.written, min(gradient.written + elements, tensor.elements))
        if piece.start < piece.stop:
            pattern = self._patterns.pattern(tensor.name, tensor.elements)
            scale = coefficient(tensor.name, self._rank, iteration)
            torch.mul(pattern[piece], scale, out=gradient.values[piece])
            gradient.written = piece.stop
            self._made += piece.stop - piece.start
