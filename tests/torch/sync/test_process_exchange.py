"""Which exchange carries tensors on which device, and what is refused before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import distributed

from byteprophet.runtime_settings import STRATEGY_MODEL
from byteprophet.torch.sync.group_exchange import GroupExchange
from byteprophet.torch.sync.mesh_exchange import MeshExchange
from byteprophet.torch.sync.process_exchange import (
    TRANSPORT_VARIABLE,
    leave_process_exchange,
    process_exchange,
)

TIMEOUT_S = 20.0


@pytest.fixture(params=["gloo", "cpu:gloo"])
def group(request: pytest.FixtureRequest) -> Iterator[str]:
    """A process group of one rank, with a backend for GPUs (gloo's) or without."""
    distributed.init_process_group(
        request.param, store=distributed.HashStore(), rank=0, world_size=1
    )
    yield request.param
    leave_process_exchange()
    distributed.destroy_process_group()


def test_processors_have_sockets(group: str) -> None:
    exchange = process_exchange("cpu", TIMEOUT_S)
    assert isinstance(exchange, MeshExchange)
    assert process_exchange("cpu", TIMEOUT_S) is exchange


def test_collectives_can_be_asked_for(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, "collectives")
    assert isinstance(process_exchange("cpu", TIMEOUT_S), GroupExchange)


def test_sockets_carry_nothing_of_gpus(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, "sockets")
    with pytest.raises(ValueError, match="'sockets': carries no tensors on cuda; unset it"):
        process_exchange("cuda", TIMEOUT_S)


@pytest.mark.parametrize("group", ["cpu:gloo"], indirect=True)
def test_a_group_needs_a_backend_for_the_device(group: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"parameters are on cuda, .* no backend \(it has cpu:gloo\): .* 'nccl' for GPUs",
    ):
        process_exchange("cuda", TIMEOUT_S)


def test_a_strategy_with_servers_is_named_if_there_are_no_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(STRATEGY_MODEL, "by.json")
    with pytest.raises(ValueError, match=r"by\.json: the strategy is for scripts with servers"):
        process_exchange("cpu", TIMEOUT_S)
    monkeypatch.setenv(STRATEGY_MODEL, "")
    with pytest.raises(ValueError, match="init_process_group"):
        process_exchange("cpu", TIMEOUT_S)
