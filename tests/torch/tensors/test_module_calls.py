"""Listeners to calls of modules come and go, whoever removes them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from byteprophet.torch.tensors import module_calls


class Owner:
    """Is in a cycle, so that only a garbage collection ends it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.timeout(60)
def test_a_garbage_collection_may_remove_listeners_at_any_time() -> None:
    """Also while others are added and removed."""
    called: list[nn.Module] = []

    def before(module: nn.Module, _inputs: Any) -> None:
        called.append(module)

    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(300):
            weakref.finalize(Owner(), module_calls.listen(before))
            module_calls.listen(before, last=True)()
            nn.Identity()(torch.ones(1))
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    called.clear()
    nn.Identity()(torch.ones(1))
    assert not called


def test_a_listener_may_end_itself_or_others_in_a_call() -> None:
    told: list[str] = []
    ends: list[Any] = []

    def first(_module: nn.Module, _inputs: Any) -> None:
        told.append("first")
        for end in ends:
            end()

    ends += [module_calls.listen(first)]
    ends += [module_calls.listen(lambda *_: told.append("last"), last=True)]
    nn.Identity()(torch.ones(1))
    nn.Identity()(torch.ones(1))
    assert told == ["first", "last"]  # who listened when the call began is told of it
