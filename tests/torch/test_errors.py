"""Errors that a script can catch by class: another rank is gone, or was waited for long enough."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import HashStore

import byteprophet
import byteprophet.torch as bps
from byteprophet import _core
from byteprophet.job.owners import Owners
from byteprophet.torch import PeerLost, TimedOut
from byteprophet.torch.sync import same_start
from byteprophet.torch.sync.agreement import Collection
from byteprophet.torch.sync.mesh_exchange import MeshExchange

Attach = Callable[..., Any]
EQUAL = Owners.equal(2)


def test_they_are_offered_and_runtime_errors() -> None:
    assert byteprophet.PeerLost is bps.PeerLost
    assert byteprophet.TimedOut is bps.TimedOut
    assert issubclass(PeerLost, RuntimeError)
    assert issubclass(TimedOut, RuntimeError)
    assert not issubclass(PeerLost, TimedOut)


def two_ranks() -> list[MeshExchange]:
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    sockets = [[-1, ends[0].detach()], [ends[1].detach(), -1]]
    store = HashStore()
    return [
        MeshExchange(_core.Mesh(rank, sockets[rank], 1 << 18), rank, 2, store) for rank in (0, 1)
    ]


def test_a_rank_that_has_left_is_a_lost_peer() -> None:
    staying, leaving = two_ranks()
    over: queue.Queue[BaseException | None] = queue.Queue()
    try:
        staying.reduce_scatter(7, [torch.ones(10)], EQUAL, True, 0, over.put)
        leaving.close()
        error = over.get(timeout=30)
    finally:
        staying.close()
    assert isinstance(error, PeerLost)
    assert str(error) == "rank 1 has left the job"


def test_an_all_reduce_tells_its_sum_and_then_its_end() -> None:
    """Once each; without its sum if a rank has left, and nothing is kept of it."""
    one, other = two_ranks()
    heard: queue.Queue[object] = queue.Queue()

    def begin(exchange: MeshExchange, first: int, tensor: torch.Tensor) -> None:
        exchange.all_reduce(
            (first, first + 1), [tensor], EQUAL, False, (0, 1), lambda: heard.put("sum"), heard.put
        )

    tensors = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])
    try:
        begin(one, 1, tensors[0])
        begin(other, 1, tensors[1])
        told = [heard.get(timeout=30) for _ in range(4)]
        assert sorted(map(str, told)) == ["None", "None", "sum", "sum"]
        assert [tensor.tolist() for tensor in tensors] == [[11, 22], [11, 22]]
        begin(one, 3, torch.ones(10))
        other.close()
        assert isinstance(heard.get(timeout=30), PeerLost)
        with pytest.raises(RuntimeError, match="has left the job"):
            begin(other, 3, torch.ones(10))
    finally:
        one.close()
    assert heard.empty()
    assert not one._summed
    assert not other._summed


def test_ranks_that_mean_different_things_are_no_lost_peer() -> None:
    exchanges = two_ranks()
    over: queue.Queue[BaseException | None] = queue.Queue()
    try:
        for exchange, elements in zip(exchanges, (10, 20), strict=True):
            exchange.reduce_scatter(7, [torch.ones(elements)], EQUAL, True, 0, over.put)
        errors = [over.get(timeout=30) for _ in exchanges]
    finally:
        for exchange in exchanges:
            exchange.close()
    assert {type(error) for error in errors} == {RuntimeError}


def train(network: Any, attach: Attach, timeout_s: float) -> Callable[[], None]:
    """One iteration; gives what makes another one, whose next forward waits for its update."""
    layer = nn.Linear(2, 2, bias=False)
    optimizer = attach(
        torch.optim.SGD(layer.parameters(), lr=0.1),
        network,
        named=layer.named_parameters(),
        timeout_s=timeout_s,
    )

    def iteration() -> None:
        layer(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        layer(torch.ones(1, 2))

    iteration()
    return iteration


@pytest.mark.parametrize(
    ("cause", "kind"), [(PeerLost, PeerLost), (TimedOut, TimedOut), (OSError, RuntimeError)]
)
def test_a_forward_raises_the_class_of_what_happened(
    network: Any, attach: Attach, cause: type[Exception], kind: type[Exception]
) -> None:
    iteration = train(network, attach, timeout_s=30)
    network.failures["Gradient.weight"] = cause("worker-1 is gone")
    with pytest.raises(RuntimeError, match=r"could not be exchanged.*worker-1 is gone") as raised:
        iteration()
    assert raised.type is kind


def test_a_forward_that_waits_too_long(network: Any, attach: Attach) -> None:
    iteration = train(network, attach, timeout_s=0.3)
    network.hold(lambda name: name == "Gradient.weight")
    with pytest.raises(TimedOut, match=r"waited 0\.3 s"):
        iteration()
    network.release()


def test_ranks_that_do_not_say_their_part(make_network: Callable[..., Any]) -> None:
    alone = make_network(size=2).rank(0)
    with pytest.raises(TimedOut, match=r"waited 0\.2 s for the numbers"):
        Collection(alone, "message", 1, "numbers").wait(0.2)


def test_a_first_rank_that_does_not_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_start, "_READ_S", 0.2)
    with pytest.raises(TimedOut, match="rank 0 did not report"):
        same_start.check(HashStore(), 1, 2, [], {}, lambda: None)
