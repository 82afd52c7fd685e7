"""Workloads made from a seed: unlike any named network, and always valid.

A seed chooses, each on its own:

    sizes    log-uniform over five decades; or hundreds of tiny tensors; or nearly equal ones;
             to any of these, a giant embedding in first or last place, or one huge tensor inside
    compute  of a tensor: in proportion to its size, to its size's root, or to neither, with noise;
             flat, or heavier towards one end of the network; some tensors cost nothing
    ratio    backward over forward, from 1/4 to 6
    bursts   none, of one length, of random lengths, or all tensors at once

The same seed gives the same workload on every machine and version: only ``Random.random()`` is
used, whose sequence Python promises to keep.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TypeVar

from byteprophet.errors import UserError
from byteprophet.input_files import whole_number
from byteprophet.workload.model import FLOAT32_BYTES, Tensor, Workload, distribute

PREFIX = "random:"

_SMALLEST_TOTAL_BYTES, _LARGEST_TOTAL_BYTES = 8_000_000, 160_000_000
_SHORTEST_NS, _LONGEST_NS = 200_000_000, 1_500_000_000

_Choice = TypeVar("_Choice")


def seed_in(name: str) -> int | None:
    """The seed in ``random:SEED``; None for other names, UserError where it is no number."""
    if not name.startswith(PREFIX):
        return None
    seed = whole_number(name.removeprefix(PREFIX))
    if seed is None:
        raise UserError(f"workload '{name}': the seed must be a whole number, e.g. {PREFIX}7")
    return seed


def generate(seed: int) -> Workload:
    """The workload of ``seed``, from 8 to 160 MB, 0.2 to 1.5 s; called ``random-<seed>``."""
    draw = _Draw(seed)
    weights = _with_giant(draw, _body(draw))
    total_bytes = draw.log_uniform(_SMALLEST_TOTAL_BYTES, _LARGEST_TOTAL_BYTES)
    elements = _elements(weights, int(total_bytes) // FLOAT32_BYTES)
    forward_ns, backward_ns = _times(draw, elements)
    bursts = _bursts(draw, len(elements))
    tensors = tuple(
        Tensor(f"tensor.{position}", FLOAT32_BYTES * count, forward, backward, burst)
        for position, (count, forward, backward, burst) in enumerate(
            zip(elements, forward_ns, backward_ns, bursts, strict=True)
        )
    )
    return Workload(f"random-{seed}", draw.integer(1, 128), tensors)


class _Draw:
    """Random choices, all from ``Random.random()``."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self._random.random()

    def log_uniform(self, low: float, high: float) -> float:
        return math.exp(self.uniform(math.log(low), math.log(high)))

    def integer(self, low: int, high: int) -> int:
        """From ``low`` to ``high``, both included."""
        return low + int(self._random.random() * (high - low + 1))

    def one_of(self, choices: Sequence[_Choice]) -> _Choice:
        return choices[self.integer(0, len(choices) - 1)]


def _body(draw: _Draw) -> list[float]:
    """Relative sizes of the tensors before giants are added."""
    kind = draw.one_of(("log-uniform", "log-uniform", "tiny", "equal"))
    if kind == "tiny":
        few = [draw.log_uniform(1e4, 1e6) for _ in range(draw.integer(2, 10))]
        many = [draw.log_uniform(1, 3e2) for _ in range(draw.integer(200, 500))]
        stride = max(1, len(many) // len(few))
        for number, weight in enumerate(few):
            many.insert(number * (stride + 1), weight)
        return many
    if kind == "equal":
        return [draw.uniform(0.8, 1.2) for _ in range(draw.integer(4, 80))]
    return [draw.log_uniform(10, 1e6) for _ in range(draw.integer(8, 160))]


def _with_giant(draw: _Draw, weights: list[float]) -> list[float]:
    """``weights``, perhaps with a tensor of up to four times their sum somewhere."""
    place = draw.one_of((None, 0, len(weights), draw.integer(0, len(weights))))
    if place is None:
        return weights
    giant = sum(weights) * draw.log_uniform(0.5, 4)
    return [*weights[:place], giant, *weights[place:]]


def _elements(weights: Sequence[float], total: int) -> list[int]:
    """At least one element per tensor, ``total`` and at most one more per tensor in all."""
    scale = total / sum(weights)
    return [1 + int(weight * scale) for weight in weights]


def _times(draw: _Draw, elements: Sequence[int]) -> tuple[list[int], list[int]]:
    """Forward and backward times of the tensors."""
    power = draw.one_of((0.0, 0.5, 1.0))
    tilt = draw.uniform(-3, 3) if draw.one_of((True, False)) else 0.0
    free_share = draw.one_of((0.0, 0.0, 0.3))
    last = max(1, len(elements) - 1)

    def weights() -> list[int]:
        drawn = [
            0
            if draw.uniform(0, 1) < free_share
            else 1 + int(1e6 * count**power * math.exp(tilt * place / last) * draw.uniform(0.5, 2))
            for place, count in enumerate(elements)
        ]
        return drawn if any(drawn) else [1] * len(drawn)

    compute_ns = draw.log_uniform(_SHORTEST_NS, _LONGEST_NS)
    forward_ns = int(compute_ns / (1 + draw.log_uniform(0.25, 6)))
    return (
        distribute(forward_ns, weights()),
        distribute(int(compute_ns) - forward_ns, weights()),
    )


def _bursts(draw: _Draw, count: int) -> list[int | None]:
    """The burst of each tensor."""
    kind = draw.one_of(("none", "fixed", "random", "random", "all"))
    if kind == "none":
        return [None] * count
    longest = draw.integer(1, max(1, count // 3))
    length = count if kind == "all" else min(32, longest)
    bursts: list[int | None] = []
    while len(bursts) < count:
        if kind == "random":
            length = draw.integer(1, longest)
        bursts += [len(bursts)] * length
    return bursts[:count]
