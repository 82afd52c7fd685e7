"""What ranks compare before they train: the first difference, the same words on all of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore

from byteprophet.torch.sync.same_start import check

_Named = Sequence[tuple[str, Tensor]]
NAMED = (("a.weight", torch.zeros(3, 4)), ("a.bias", torch.zeros(3)), ("b", torch.zeros(5)))
OPTIONS = {"sync": "dear", "fusion": "planned"}


def compared(named: Sequence[_Named], options: Sequence[dict[str, Any]]) -> set[str]:
    """What is said, by any of the ranks, with these parameters and options of each."""
    store, here = HashStore(), threading.Barrier(len(named), timeout=30)

    def all_here() -> None:
        here.wait()

    def rank(number: int) -> str:
        try:
            check(store, number, len(named), named[number], options[number], all_here)
        except ValueError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(named)) as ranks:
        return set(ranks.map(rank, range(len(named))))


def test_what_is_alike_is_accepted() -> None:
    assert compared([NAMED] * 3, [OPTIONS] * 3) == {""}


@pytest.mark.parametrize(
    ("other", "first", "second"),
    [
        (NAMED[::-1], "'a.weight' of (3, 4) float32", "'b' of (5,) float32"),
        ((NAMED[1], NAMED[0], NAMED[2]), "'a.weight'", "'a.bias'"),
        (NAMED[:2], "'b' of (5,)", "missing"),
        ((*NAMED, ("c", torch.zeros(1))), "missing", "'c' of (1,)"),
        ((*NAMED[:2], ("b", torch.zeros(5).double())), "float32", "'b' of (5,) float64"),
    ],
)
@pytest.mark.parametrize("on", [1, 2])
def test_the_first_difference_is_named(other: _Named, first: str, second: str, on: int) -> None:
    """All say the same; also rank 0, and the one that is like it."""
    ranks: list[_Named] = [NAMED] * 3
    ranks[on] = other
    (said,) = compared(ranks, [OPTIONS] * 3)
    zeros, _, others = said.partition("rank 0")
    assert "ranks differ" in zeros
    assert first in zeros
    assert second in others
    assert f"rank {on}" in others


@pytest.mark.parametrize("name", ["sync", "fusion"])
def test_options_are_compared(name: str) -> None:
    (said,) = compared([NAMED] * 2, [OPTIONS, {**OPTIONS, name: "allreduce"}])
    assert f"{name}='{OPTIONS[name]}'" in said
    assert f"{name}='allreduce'" in said
