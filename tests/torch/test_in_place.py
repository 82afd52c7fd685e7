"""``sync="ddp"``: torch's DistributedDataParallel exchanges the gradients of an optimizer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import byteprophet.torch as bps
from byteprophet.cli.main import run_cli

SCRIPT = Path(__file__).with_name("in_place_script.py")


@pytest.mark.job
def test_two_ranks_end_with_the_bits_of_our_own_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With clipping, a schedule, evaluation, a frozen parameter, accumulation, no model given."""
    monkeypatch.chdir(tmp_path)
    ways = ["allreduce", "ddp", "ddp:unnamed", "ddp:taken", "allreduce:held", "ddp:held"]
    command = [sys.executable, str(SCRIPT), str(tmp_path), *ways, "refused"]
    assert run_cli(["run", "--servers", "0", "--workers", "2", "--", *command]) == 0
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    for way in ways:
        assert first[way] == second[way]
    assert first["ddp"] == first["ddp:unnamed"] == first["ddp:taken"] == first["allreduce"]
    assert first["ddp:held"] == first["allreduce:held"] != first["ddp"]
    refused = first["refused"]
    assert refused == second["refused"]
    assert "sends after every backward pass" in refused["passes"]
    assert "takes none" in refused["compression"]
    assert "knows no owners" in refused["owners"]
    assert "is compiled" in refused["compiled"]
    assert "two optimizers" in refused["two"]
    assert refused["again"] == "this optimizer is distributed already"
    assert "two synchronisers, DistributedOptimizer and a hook of" in refused["before"]
    assert "this optimizer is horovod's Other, which exchanges" in refused["horovod"]
    assert "'last.module.weight' has two synchronisers" in refused["within"]
    assert "was frozen, or in no group, when DistributedDataParallel was" in refused["thawed"]
    for name in ("unused", "frozen"):
        assert "not averaged, because '0.weight' was in no backward pass" in refused[name]
    assert "call the Model itself, not its parts or its forward()" in refused["called"]
    assert refused["model"] == ""
    assert "call the Model itself, not its parts or its forward()" in refused["forward"]
    assert "no call of a model with the optimizer's parameters was seen" in refused["by hand"]
    assert "sync='ddp': ranks differ: parameter 1 is '0.weight' of (3, 3)" in refused["order"]
    assert refused["copied"] == ""


def test_it_needs_a_process_group() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="init_process_group"):
        bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model=model, sync="ddp"
        )


@pytest.mark.parametrize("sync", ["ddp", "fsdp2"])
def test_an_optimizer_that_needs_its_closure_is_refused(sync: str) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="LBFGS evaluates its closure several times per step"):
        bps.DistributedOptimizer(torch.optim.LBFGS(model.parameters()), model=model, sync=sync)
