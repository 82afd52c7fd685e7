"""The collectives of a process group of one rank: their order, and what fails."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed

from byteprophet.errors import PeerLost
from byteprophet.job.owners import Owners
from byteprophet.torch.sync import group_exchange
from byteprophet.torch.sync.bucket_layout import PLACES
from byteprophet.torch.sync.group_exchange import GroupExchange

ALONE = Owners.equal(1)
LIMIT_S = 30.0


@pytest.fixture
def exchange() -> Iterator[GroupExchange]:
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    group: Any = distributed.group.WORLD
    made = GroupExchange(group, "cpu", distributed.PrefixStore("exchange", store))
    yield made
    made.close()
    distributed.destroy_process_group()


def gathered(exchange: GroupExchange, tensor: torch.Tensor) -> BaseException | None:
    """The error of an all-gather, once it is over."""
    over: queue.Queue[BaseException | None] = queue.Queue()
    number = next(exchange.numbers)
    exchange.all_gather(number, [tensor], ALONE, 0, over.put)
    return over.get(timeout=LIMIT_S)


def test_types_that_cannot_be_sent_are_refused_and_others_go_on(exchange: GroupExchange) -> None:
    for dtype in (torch.int16, torch.bool, torch.float8_e4m3fn):
        with pytest.raises(ValueError, match=f"a process group do not send {dtype}"):
            gathered(exchange, torch.ones(4).to(dtype))
    assert gathered(exchange, torch.ones(4)) is None


@pytest.mark.parametrize("call", ["set", "delete_key"])
def test_an_operation_fails_with_the_store(
    exchange: GroupExchange, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        """A store whose server is gone."""

        def set(self, _key: str, _value: str) -> None:
            if call == "set":
                raise distributed.DistNetworkError("Broken pipe")

        def delete_key(self, _key: str) -> None:
            raise distributed.DistNetworkError("Broken pipe")

    monkeypatch.setattr(group_exchange, "_KEPT", 0)
    monkeypatch.setattr(exchange, "_order", Broken())
    for _ in range(2):
        error = gathered(exchange, torch.ones(4))
        assert isinstance(error, PeerLost)
        assert "other ranks cannot be reached: Broken pipe" in str(error)


def test_a_lack_of_memory_is_no_lost_rank(
    exchange: GroupExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(group_exchange, "all_gather", fail)
    error = gathered(exchange, torch.ones(4))
    assert type(error) is RuntimeError
    assert str(error) == "byteprophet: an operation failed on this rank: out of memory"


def test_an_iteration_begins_when_earlier_ones_have_ended(
    exchange: GroupExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows an operation of the earlier one is requested only when that has ended."""
    begun: list[float] = []
    may_end, over = threading.Event(), threading.Event()

    class Work:
        def wait(self) -> None:
            assert may_end.wait(LIMIT_S)

    def begin(_whole: torch.Tensor, own: torch.Tensor, **_options: object) -> Work:
        begun.append(float(own[0]))
        return Work()

    def ask(number: int, position: int, done: Any) -> None:
        exchange.all_gather(number, [torch.full((1,), float(number))], ALONE, position, done)

    monkeypatch.setattr(group_exchange, "all_gather", begin)
    ask(1, 7 * PLACES + 5, lambda _: ask(2, 7 * PLACES + 9, lambda _: None))
    ask(3, 8 * PLACES, lambda _: over.set())
    ask(4, 7 * PLACES + 6, lambda _: None)
    may_end.set()
    assert over.wait(LIMIT_S)
    assert begun == [1, 4, 2, 3]
