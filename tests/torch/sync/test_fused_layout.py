"""Neighbours in forward order share buffers, as far as sizes and kinds allow."""

from __future__ import annotations

import random
from itertools import pairwise

import torch

from byteprophet.job.shared_buffers import messages
from byteprophet.torch.sync.fused_layout import Small

CPU = torch.device("cpu")
LIMIT = 40_000


def small(elements: int, dtype: torch.dtype = torch.float32) -> Small:
    gradient = torch.empty(elements, dtype=dtype)
    return Small.of(gradient, gradient.nbytes)


def most(before: int, size: int, whole: int) -> int:
    """The largest size of a buffer with ``before`` bytes before it."""
    return min(LIMIT, max(16_384, min(before, whole - before - size)))


def test_every_division_keeps_the_rules() -> None:
    for seed in range(300):
        draw = random.Random(seed)
        sizes = {f"p{n}": 4 * int(2 ** draw.uniform(1, 16)) for n in range(draw.randint(1, 60))}
        order = draw.sample(list(sizes), len(sizes))
        kinds = {name: draw.choice((torch.float32, torch.int32)) for name in sizes}
        may = {
            name: small(size // 4, kinds[name])
            for name, size in sizes.items()
            if size <= LIMIT and draw.random() < 0.9
        }
        found = messages(order, sizes, may, LIMIT)
        assert [name for held in found for name in held] == order
        whole, before = sum(sizes.values()), 0
        for held, following in pairwise([*found, ("",)]):
            own = sum(sizes[name] for name in held)
            if len(held) > 1:
                assert set(held) <= may.keys()
                assert own <= most(before, own, whole)
                assert len({kinds[name] for name in held}) == 1
            first = following[0]  # it could not have been in the same buffer
            if held[0] in may and first in may and kinds[first] == kinds[held[0]]:
                size = own + sizes[first]
                assert size > most(before, size, whole)
            before += own


def test_without_a_limit_of_bytes_all_travel_alone() -> None:
    order = ["a", "b"]
    assert messages(order, {"a": 4, "b": 4}, {"a": small(1), "b": small(1)}, 0) == [("a",), ("b",)]
