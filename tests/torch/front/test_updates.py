"""The updater alone: what becomes of the others when one update fails, and long waits."""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from byteprophet.torch.front.slots import Slot, Transfer
from byteprophet.torch.front.updates import Updater
from byteprophet.torch.sync import patience
from byteprophet.torch.sync.alone import Alone
from byteprophet.torch.tensors import ending_threads, pending
from byteprophet.torch.tensors.own_streams import Events

ELEMENTS = 100_000  # so many are updated in a call of their own


class WaitsForAll(Alone):
    """Shards of two parameters travel together: the first one waits for the second."""

    def all_gather(self, parameter: str, tensor: Tensor, *, done: Any) -> None:
        assert parameter == "first"


class FailsAtTheSecond:
    second: Tensor
    before: Events = MappingProxyType({})

    def apply(self, group: int, updates: list[Any]) -> None:
        if updates[0][0] is self.second:
            raise MemoryError("no room for it")


def test_a_failure_is_told_to_who_waits_for_another_of_its_group() -> None:
    updater = Updater("updater", WaitsForAll(), timeout_s=20)
    slots, transfers = [], []
    for index, name in enumerate(("first", "second")):
        parameter = nn.Parameter(torch.zeros(ELEMENTS))
        slot = Slot(name, parameter, index, 1)
        gradient = torch.zeros(ELEMENTS)
        slot.transfer = Transfer(
            slot, gradient, gradient, None, in_place=True, shard=slice(0, ELEMENTS // 2)
        )
        updater.arrive(slot.transfer, None)
        slots.append(slot)
        transfers.append(slot.transfer)
    plan: Any = FailsAtTheSecond()
    plan.second = slots[1].parameter
    updater.hand_over(transfers, plan, [0, 0], keep=None)
    try:
        for _ in range(2):  # whoever comes later is told, too
            with pytest.raises(RuntimeError, match=r"'second' could not be .*: no room for it"):
                updater.wait_updated(slots)
    finally:
        for slot in slots:
            pending.unmark(slot.parameter)
        updater.close()
        ending_threads.join_all(5)


def test_a_failure_in_the_training_thread_ends_all_waits() -> None:
    updater = Updater("updater", Alone(), timeout_s=20)
    slots, transfers = [], []
    for index, name in enumerate(("first", "second", "late")):
        slot = Slot(name, nn.Parameter(torch.zeros(2)), index, 1)
        gradient = torch.zeros(2)
        slot.transfer = Transfer(slot, gradient, gradient, None, in_place=True)
        if name != "late":
            updater.arrive(slot.transfer, None)
        slots.append(slot)
        transfers.append(slot.transfer)
    plan: Any = FailsAtTheSecond()
    plan.second = None
    assert updater.apply_arrived(transfers[:1], plan, [0]) == {transfers[0]}
    assert slots[0].transfer is None
    assert updater.apply_arrived(transfers[2:], plan, [0]) == set()
    plan.second = slots[1].parameter
    message = r"'second' could not be .*: no room for it"
    with pytest.raises(RuntimeError, match=message):
        updater.apply_arrived(transfers[1:], plan, [0, 0])
    assert updater.has_failed
    for waits_for in (slots, []):
        with pytest.raises(RuntimeError, match=message):
            updater.wait_updated(waits_for)


def test_the_end_of_an_update_leaves_a_later_gradient_alone() -> None:
    updater = Updater("updater", Alone(), timeout_s=20)
    slot = Slot("first", nn.Parameter(torch.zeros(2)), 0, 1)
    gradients = torch.zeros(2), torch.zeros(2)
    first, later = (Transfer(slot, each, each, None, in_place=True) for each in gradients)
    plan: Any = FailsAtTheSecond()
    plan.second = None
    updater.hand_over([first], plan, [0], keep=None)
    slot.transfer = later
    updater.arrive(first, None)
    updater.wait_updated([slot])
    assert slot.transfer is later
    updater.close()
    ending_threads.join_all(5)


class WaitsForRank1(Alone):
    """Says for whom it waits, as the synchronisers among ranks do."""

    def awaited(self, name: str) -> str:
        return f"of rank 1 nothing has come of {name}"


def test_a_long_wait_says_for_whom(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(patience, "FIRST_S", 0.1)
    updater = Updater("updater", WaitsForRank1(), timeout_s=60)
    parameter = nn.Parameter(torch.zeros(2))
    slot = Slot("first", parameter, 0, 1)

    def wait(takes_s: float) -> str:
        gradient = torch.zeros(2)
        transfer = Transfer(slot, gradient, gradient, None, in_place=True, shard=None)
        slot.transfer = transfer
        threading.Timer(takes_s, updater.arrive, (transfer, None)).start()
        updater.wait_arrived([slot])
        return capfd.readouterr().err

    assert wait(1.0) == (
        "byteprophet: warning: rank 0 has waited 0.1 s for parameter 'first': of rank 1 nothing "
        "has come of Gradient.first\n"
    )
    assert wait(0.5) == ""  # this takes no longer than before
