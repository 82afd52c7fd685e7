"""Local SGD: real ranks have the bits of plain code, resume, and refuse what cannot be right."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from byteprophet.errors import UserError
from byteprophet.job.staleness import with_local_sgd
from byteprophet.job.strategy_file import Used, read_strategy_file, write_strategy
from byteprophet.strategy.ways import facts
from byteprophet.torch import data_parallel
from byteprophet.torch.front.local_sgd import SINCE

from .test_stale import MODEL, assert_bits, run, write


def write_local(folder: Path, way: str, runtime: str, steps: int) -> Path:
    write(folder, way, runtime, {})
    path = folder / f"{way}.json"
    strategy = with_local_sgd(read_strategy_file(path).strategy, steps)
    write_strategy(path, Used(MODEL, strategy, 0))
    return path


@pytest.mark.job
@pytest.mark.timeout(300)
def test_two_ranks_have_the_bits_of_plain_code(tmp_path: Path) -> None:
    write_local(tmp_path, "four", "allreduce", 4)
    write_local(tmp_path, "clipped", "dear", 3)
    write_local(tmp_path, "five", "dear-planned", 5)
    first, second = run(tmp_path, 2, ways=["four", "clipped", "five"], resumes=True)
    for way in ("four", "clipped", "five"):
        for rank in (first, second):
            assert_bits(rank[way]["given"], rank[way]["by hand"], way)
    for way in ("four", "clipped"):  # which end with an average
        assert_bits(second[way]["given"], first[way]["given"], way)
    # Saved after five steps: right after an average, or some steps after it.
    for rank in (first, second):
        for way in ("four", "clipped", "five"):
            assert_bits(rank[way]["whole"], rank[way]["given"], way)
            assert_bits(rank[way]["shards"], rank[way]["given"], way)
    with pytest.raises(AssertionError):
        assert_bits(second["five"]["given"], first["five"]["given"], "apart")


@pytest.mark.job
@pytest.mark.timeout(300)
def test_three_ranks(tmp_path: Path) -> None:
    write_local(tmp_path, "four", "dear-planned", 4)
    results = run(tmp_path, 3, ways=["four"])
    for rank in results:
        assert_bits(rank["four"]["given"], results[0]["four"]["given"], "ranks")
        torch.testing.assert_close(
            rank["four"]["given"], rank["four"]["by hand"], rtol=1e-5, atol=1e-6
        )


def test_in_one_process(network: Any, attach: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """With one rank the average is the parameter itself."""
    models = [nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ours = attach(
        torch.optim.SGD(models[0].parameters(), lr=0.1),
        network,
        named=models[0].named_parameters(),
        local_steps=2,
    )
    plain = torch.optim.SGD(models[1].parameters(), lr=0.1)
    for _ in range(5):
        for model, optimizer in zip(models, (ours, plain), strict=True):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    ours.finish()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)
    sent = [name for _, name, _ in network.submitted if name.startswith("Gradient.")]
    assert len(sent) == 2 * 4  # four parameters, twice
    assert "local SGD" not in capsys.readouterr().err
    state = ours.state_dict()
    assert state[SINCE] == 1
    assert "local SGD: 1 of 2 steps were made since parameters were" in capsys.readouterr().err
    with pytest.raises(ValueError, match="saved 2 steps after an average of parameters, and here"):
        ours.load_state_dict({**state, SINCE: 2})
    models[0][0].requires_grad_(False)
    network.submitted.clear()
    ours.load_state_dict(state)
    assert ours.state_dict()[SINCE] == 1
    ours.zero_grad()
    models[0](torch.ones(1, 3)).square().sum().backward()
    ours.step()
    ours.finish()
    averaged = {name for _, name, _ in network.submitted if name.startswith("Gradient.")}
    assert averaged == {"Gradient.1.weight", "Gradient.1.bias"}  # what is frozen stays as it is
    ours.load_state_dict({name: state[name] for name in ("state", "param_groups")})
    assert SINCE not in ours.state_dict()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(models[0](torch.ones(1, 3)).sum()).backward()
    with pytest.raises(RuntimeError, match="GradScaler cannot be used with local SGD"):
        scaler.step(ours)


@pytest.mark.parametrize(
    ("saves_or_ends", "said"),
    [
        (lambda model, _: model.state_dict(), "a state that is saved now is this rank's own"),
        (lambda model, _: torch.save(model, io.BytesIO()), "a state that is saved now is this ra"),
        (lambda _, ours: ours._front.drain(), "they stay this rank's own"),
    ],
    ids=["state_dict", "save", "end"],
)
def test_parameters_that_differ_between_ranks_are_told(
    saves_or_ends: Callable[[nn.Module, Any], object],
    said: str,
    network: Any,
    attach: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    ours = attach(torch.optim.SGD(model.parameters()), network, local_steps=2)
    for steps in range(3):
        for _ in range(2):
            saves_or_ends(model, ours)
            nn.Linear(3, 3).state_dict()  # which no optimizer trains
        told = capsys.readouterr().err.splitlines()
        assert len(told) == (steps == 1)
        assert all(
            f"1 of 2 steps were made since parameters were averaged: {said}" in line
            for line in told
        )
        model(torch.ones(1, 3)).sum().backward()
        ours.step()
    attach(torch.optim.SGD(model.parameters()), network)
    assert "another optimizer takes them over, as they are on rank 0" in capsys.readouterr().err
    ours._front.drain()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"local_sgd": 1}, "local_sgd: must be an integer from 2 to 1024"),
        ({"local_sgd": "4"}, "local_sgd: must be an integer from 2 to 1024"),
        ({"staleness": {"*": 1}}, "averages no gradients, so staleness must be left out"),
        ({"accumulation": 2}, "averages no gradients, so accumulation must be left out"),
        (
            {"compressors": [{"parameters": ["*"], "type": "onebit"}]},
            "averages no gradients, so compressors must be left out",
        ),
        ({"runtime": "ddp"}, "local_sgd: 'ddp' has none; allreduce, dear, dear-planned have"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = write_local(tmp_path, "four", "dear", 4)
    used = read_strategy_file(path)
    assert used.strategy.local_sgd == 4
    assert not any(bucket.sharded for bucket in used.strategy.buckets)
    assert facts(used)["local_sgd"] == "parameters are averaged after every 4 steps"
    plain = replace(used, strategy=replace(used.strategy, local_sgd=0))
    assert plain.digest != used.digest
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=said):
        read_strategy_file(path)


def test_what_cannot_be_right_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_local(tmp_path, "four", "dear", 4)
    monkeypatch.setenv("BYTEPROPHET_STRATEGY", str(path))
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(UserError, match=r"four\.json: only DistributedOptimizer does local SGD"):
        data_parallel._distribute("allreduce", None, optimizer, None)  # type: ignore[arg-type]
