"""What a script's own process measures of its memory, beside a prediction without data."""

from __future__ import annotations

import functools
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from byteprophet.cli.main import run_cli
from byteprophet.job.region_costs import read_region_costs
from byteprophet.job.region_memory import RegionMemory, read_region_memory
from byteprophet.job.strategy_file import read_strategy_file
from byteprophet.launcher import JobSpec, run_job
from byteprophet.memory.mixes import profile_regions
from byteprophet.memory.training import Training
from byteprophet.runtime_settings import (
    REGION_BUDGET_S,
    REGION_COSTS,
    REGION_MEMORY,
    REGION_MODES,
)
from byteprophet.torch.regions.memory_probe import MemoryProbe

from ...namespaces import why_not_permitted
from ...thorough import THOROUGH
from .memory_worker import BLOCKS, Network, batch

WORKER = Path(__file__).with_name("memory_worker.py")
PATHS = (*(f"blocks.{place}" for place in range(BLOCKS)), "head")


def _loss(model: nn.Module, one: Any) -> torch.Tensor:
    data, classes = one
    return nn.functional.cross_entropy(model(data), classes)


@pytest.mark.parametrize("plain", [False, True])
def test_units_of_several_modules_are_followed(plain: bool) -> None:
    """``plain``: none of them can be recomputed, so that all mixes take the same memory."""
    layers = [nn.Linear(64, 64) if place % 2 == 0 else nn.GELU() for place in range(7)]
    model = nn.Sequential(*layers)
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    units = (("0", "1"), ("2", "3"), ("4", "5"), ("6",))
    optimizer = torch.optim.Adam(model.parameters())
    results: list[RegionMemory] = []
    done = results.append
    never = frozenset(units) if plain else frozenset()
    named = list(model.named_parameters())
    MemoryProbe(model, units, named, optimizer, done, never, shardable=True)
    optimizer.step()
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(torch.randn(512, 64)).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.eval()(torch.randn(512, 64))
        model.train()
    (memory,) = results
    assert memory.units == units
    assert {*memory.parameters} == {name for name, _ in named}
    assert memory.parameters["unused"].size_bytes == 12
    none, most = memory.phases.peaks([(0, 0, 0, 0), (1, 1, 1, 0)])
    assert none == most if plain else none > most


@pytest.mark.job
@pytest.mark.parametrize("sync", ["dear", "torch"])
def test_measured_with_data_as_predicted_without(sync: str, tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    spec = JobSpec(
        command=(sys.executable, str(WORKER), sync, "20"),
        run_directory=tmp_path / "run",
        workers=1,
        servers=0,
        environment={
            REGION_COSTS: str(tmp_path / "costs.json"),
            REGION_MODES: "recomputed",
            REGION_BUDGET_S: "1e-9",
            REGION_MEMORY: str(path),
        },
        timeout_s=200.0,
    )
    run_job(spec).check()
    memory = read_region_memory(path)
    assert memory.shardable == (sync == "dear")  # Adam updates each element on its own
    assert memory.units == tuple((each,) for each in PATHS)
    assert {*read_region_costs(tmp_path / "costs.json").regions} == {*memory.units}
    adam = functools.partial(torch.optim.Adam, lr=1e-3)
    predicted = profile_regions(Training(Network(), [batch()], _loss, adam), PATHS)
    mixes = list(itertools.product((0, 1), repeat=len(PATHS)))
    measured, expected = memory.phases.peaks(mixes), predicted.peaks(mixes)
    assert expected.max() > 1.3 * expected.min()
    assert measured.tolist() == pytest.approx(expected.tolist(), rel=0.02)
    sizes = {name: each.nbytes for name, each in Network().named_parameters()}
    assert {name: each.size_bytes for name, each in memory.parameters.items()} == sizes
    assert memory.reducer_bytes == (sum(sizes.values()) if sync == "torch" else 0)
    assert all(each.state_bytes == 2 * each.size_bytes for each in memory.parameters.values())
    first, last = memory.parameters["blocks.0.norm.weight"], memory.parameters["head.bias"]
    assert first.unread_places < last.unread_places <= last.ready_place < first.ready_place


@pytest.mark.job
@pytest.mark.skipif(why_not_permitted() is not None, reason=str(why_not_permitted()))
@pytest.mark.parametrize("sync", [pytest.param("dear", marks=THOROUGH), "torch"])
def test_optimize_within_a_budget(
    sync: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    job = f"{sys.executable} {WORKER} {sync} 20"
    run = "run --workers 2 --servers 0 --bandwidth 400mbit --record"
    assert run_cli([*run.split(), "--", *job.split()]) == 0
    (recorded,) = Path("runs").iterdir()
    optimize = ["optimize", str(recorded), "--budget-s", "1", "--json", "result.json"]
    assert run_cli([*optimize, "--memory-budget", "1GB"]) == 0
    plain = json.loads(Path("result.json").read_text())["memory_bytes"]
    assert plain["predicted"] <= plain["budget"] == 10**9

    budget = round(0.85 * plain["baseline"])
    assert run_cli([*optimize, "--memory-budget", str(budget)]) == 0
    result = json.loads(Path("result.json").read_text())
    memory = result["memory_bytes"]
    assert memory["predicted"] <= memory["budget"] == budget < memory["baseline"]
    regions = read_strategy_file(Path(result["strategy"])).strategy.regions
    assert regions
    assert all(region.recomputed and not region.compiled for region in regions)
    assert "recompute" in {each["pass"] for each in result["decisions"]}

    capsys.readouterr()
    assert run_cli([*optimize, "--memory-budget", "1MB"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "takes at least" in said
    assert "the budget is 1000000" in said
    assert run_cli([*optimize, "--pass", "recompute"]) == 2
    assert "it only pays with --memory-budget" in capsys.readouterr().err
