"""Makes the gradients of a paced model, ahead of time if possible.

Some layers have many bytes and little compute, such as a classifier, which backward runs first, or
an embedding at the other end. Writing such a gradient takes longer than the layer's stated time. So
gradients are written in the order in which backward needs them, piece by piece, while layers wait
for their time to pass. If a gradient is incomplete when its layer runs, the layer completes it.

The host of a real accelerator would not have this work. The thread that does it may have priority
over all others (``real_time.py``), and the threads that exchange and update are busiest when
forward begins. So the work is spread evenly. It begins with the first layer, and has the lowest
constant rate that completes each gradient by the time its layer runs.

One thread at a time may use this; there are no locks. Gradients occupy memory from the preceding
forward pass on, instead of from their backward pass on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from byteprophet.paced.gradient import Patterns, coefficient
from byteprophet.workload.model import Tensor, Workload

PIECE_ELEMENTS = 1 << 18
"""The size of a piece: 1 MiB, which takes well below a millisecond on an idle machine."""


@dataclass(frozen=True)
class Quota:
    """How many elements of an iteration's gradients must be written when a layer has run."""

    forward: int
    backward: int


def quotas(workload: Workload) -> list[Quota]:
    """The quotas of the layers, in forward order."""
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
    """A gradient of which the first ``written`` elements are complete."""

    values: torch.Tensor
    written: int = 0


class GradientMaker:
    """Makes the gradients of ``tensors`` (in forward order) on one rank.

    Each gradient is a new tensor. Once it was taken, there is no other reference to it, so that
    autograd can use it without a copy.
    """

    def __init__(self, tensors: Sequence[Tensor], patterns: Patterns, rank: int) -> None:
        self._tensors = tensors
        self._patterns = [patterns.pattern(each.name, each.elements) for each in tensors]
        self._rank = rank
        self._iteration = 0
        self._begun: dict[int, _Gradient] = {}  # gradients not taken yet, by position
        self._next = -1  # position of the next piece's tensor; -1 if nothing is left
        self._made = 0  # elements of this iteration written so far

    @property
    def iteration(self) -> int:
        """The iteration given to the latest ``prepare``."""
        return self._iteration

    def prepare(self, iteration: int) -> None:
        """Make the gradients of ``iteration`` from now on, and discard those of others."""
        self._iteration = iteration
        self._begun = {}
        self._next = len(self._tensors) - 1
        self._made = 0

    def make_piece(self, quota: int) -> bool:
        """Write one piece. Returns False if ``quota`` elements, or all, were written already."""
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
        """Complete and return the gradient of the tensor at ``position``, shape (elements,)."""
        gradient = None
        if iteration == self._iteration:
            gradient = self._begun.pop(position, None)
            self._next = min(self._next, position - 1)
        if gradient is None:
            values = torch.mul(self._patterns[position], self._scale(position, iteration))
            self._made += self._tensors[position].elements
            return values
        self._write(gradient, position, iteration, gradient.values.numel())
        return gradient.values

    def _empty(self, position: int) -> _Gradient:
        return _Gradient(torch.empty(self._tensors[position].elements, dtype=torch.float32))

    def _scale(self, position: int, iteration: int) -> float:
        return coefficient(self._tensors[position].name, self._rank, iteration)

    def _write(self, gradient: _Gradient, position: int, iteration: int, elements: int) -> None:
        """Write the next ``elements`` elements, or fewer if fewer are missing."""
        tensor = self._tensors[position]
        piece = slice(gradient.written, min(gradient.written + elements, tensor.elements))
        if piece.start < piece.stop:
            scale = self._scale(position, iteration)
            torch.mul(self._patterns[position][piece], scale, out=gradient.values[piece])
            gradient.written = piece.stop
            self._made += piece.stop - piece.start
