"""DistributedDataParallel in plain scripts: recorded, and given the buckets of a strategy."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.job import Bucket, Model, Parameter, Strategy
from byteprophet.job.strategy import Region
from byteprophet.job.strategy_file import Used, read_strategy, write_strategy
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.recording import ddp_buckets
from byteprophet.torch.recording.ddp_buckets import why_fixed
from byteprophet.torch.retuning.given_ddp_strategy import construct_with, limits_mb

SCRIPT = Path(__file__).with_name("ddp_script.py")
SIZES_BYTES = {
    "0.weight": 480,
    "0.bias": 80,
    "2.weight": 1600,
    "2.bias": 80,
    "4.weight": 160,
    "4.bias": 8,
}
NAMES = [*SIZES_BYTES]


def used(buckets: list[list[str]], runtime: str = "ddp") -> Used:
    return Used(
        Model(tuple(Parameter(name, size) for name, size in SIZES_BYTES.items())),
        Strategy(
            runtime,
            tuple(Bucket(tuple(names), place, place) for place, names in enumerate(buckets)),
        ),
        since=0,
    )


GIVEN = used([["4.bias"], ["4.weight", "2.bias", "2.weight"], ["0.bias", "0.weight"]])


def ran(folder: Path, options: list[str], ways: list[str]) -> tuple[Path, list[dict[str, Any]]]:
    """The directory of a run of the script, and what its ranks wrote."""
    before = {*Path("runs").glob("*")}
    script = [sys.executable, str(SCRIPT), str(folder), *ways]
    assert run_cli(["run", "--servers", "0", *options, "--", *script]) == 0
    (run,) = {*Path("runs").glob("*")} - before
    return run, [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.job
def test_a_plain_script_is_recorded_and_given_other_buckets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run, plain = ran(tmp_path, ["--record"], [])
    recorded = read_strategy(run)
    assert recorded is not None
    assert not recorded.strategy.fixed
    (bucket,) = recorded.strategy.buckets  # smaller than DistributedDataParallel's first bucket
    assert [NAMES.index(name) for name in bucket.parameters] == plain[0]["plain"]["buckets"][0]
    assert {p.name: p.size_bytes for p in recorded.model.parameters} == SIZES_BYTES
    assert run_cli(["optimize", str(run), "--budget-s", "1"]) == 0
    capfd.readouterr()
    fixed = replace(recorded, strategy=replace(recorded.strategy, fixed="static_graph=True"))
    write_strategy(tmp_path / "fixed.json", fixed)
    write_strategy(tmp_path / "given.json", GIVEN)
    write_strategy(tmp_path / "late.json", used([["0.bias", "4.bias"], [*NAMES[2:5], "0.weight"]]))
    whole = used([NAMES], "fsdp2")
    units = tuple(replace(each, sharded=True) for each in whole.strategy.buckets)
    sharded = replace(whole, strategy=replace(whole.strategy, buckets=units))
    write_strategy(tmp_path / "runtime.json", sharded)
    regions = Region(("0", "1"), recomputed=True), Region(("2",), recomputed=True)
    recomputed = replace(GIVEN.strategy, regions=regions)
    write_strategy(tmp_path / "recomputed.json", replace(GIVEN, strategy=recomputed))
    unknown = replace(GIVEN.strategy, regions=(Region(("7",), recomputed=True),))
    write_strategy(tmp_path / "unknown.json", replace(GIVEN, strategy=unknown))
    write_strategy(tmp_path / "other.json", used([NAMES[1:]]))
    write_strategy(tmp_path / "unequal-0.json", GIVEN)
    write_strategy(tmp_path / "unequal-1.json", used([NAMES]))
    right = ["late", "recomputed", "fixed"]
    ways = ["static_graph", "find_unused_parameters", *right, "runtime", "unknown", "other"]
    ways.append("unequal")
    run, given = ran(tmp_path, ["--record", "--strategy", "given.json"], ways)
    again = read_strategy(run)
    assert again is not None
    assert again.strategy.buckets == tuple(
        replace(bucket, parameters=names)
        for bucket, names in zip(
            GIVEN.strategy.buckets,
            (("4.bias",), ("4.weight", "2.bias", "2.weight"), ("0.bias", "0.weight")),
            strict=True,
        )
    )
    for rank in (0, 1):
        assert given[rank]["plain"]["parameters"] == plain[0]["plain"]["parameters"]
        assert given[rank]["fixed"]["buckets"] == plain[0]["plain"]["buckets"]
        for way in right:
            assert given[rank][way]["parameters"] == plain[0]["plain"]["parameters"]
        assert {way for way in ways if given[rank][way] == 2} == {*ways} - {*right}
    said = capfd.readouterr().out
    for line in (
        "given.json: the buckets of DistributedDataParallel cannot be given: static_graph=True",
        "cannot be given: find_unused_parameters=True never rebuilds its buckets",
        "runtime.json: runtime 'fsdp2' needs a script of DistributedOptimizer",
        "unknown.json is the strategy of another model: there is no module '7' in Sequential",
        "other.json is the strategy of another model: parameter '0.weight' of this model is in "
        "none of its buckets",
        "unequal-1.json: ranks differ: option 1 is strategy=",
    ):
        assert f"byteprophet: error: {tmp_path}" in said
        assert line in said
    assert "warning" not in said.partition("error")[0]
    assert f"byteprophet: warning: {tmp_path}/late.json: DistributedDataParallel made" in said


def test_the_limit_of_a_bucket_is_its_size() -> None:
    assert [round(limit * 2**20) for limit in limits_mb(GIVEN)] == [8, 1840, 560]


def test_models_whose_buckets_cannot_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert why_fixed(model, False, False) == ""
    assert why_fixed(model, True, False).startswith("static_graph=True")
    model[1].to(torch.bfloat16)
    several = "parameters of several types (torch.bfloat16, torch.float32)"
    assert why_fixed(model, False, False).startswith(several)
    model[1].requires_grad_(False)
    assert why_fixed(model, False, False) == ""
    monkeypatch.setattr(ddp_buckets, "takes_limits", lambda: False)
    assert why_fixed(model, False, False).startswith("this torch takes no limit for each bucket")
    model.append(nn.EmbeddingBag(3, 2, sparse=True))
    assert why_fixed(model, False, False) == "the sparse gradient of '2' has a bucket to itself"


def buckets_under(strategy: Strategy) -> ddp_buckets.Buckets | None:
    """The buckets of a model of one rank that was constructed with ``strategy``."""
    network = nn.Sequential(
        nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2)
    )
    settings = replace(RuntimeSettings.from_environment(), strategy="given.json")
    model = DistributedDataParallel.__new__(DistributedDataParallel)
    plain = DistributedDataParallel.__init__
    construct_with(replace(GIVEN, strategy=strategy), settings, plain, model, (network,), {})
    for _ in range(3):
        model(torch.ones(4, 6)).sum().backward()
    return ddp_buckets.rebuilt_buckets(model)


def test_without_a_limit_for_each_bucket_those_of_one_limit_are_given(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As in torch 2.10 to 2.12."""
    monkeypatch.setattr(ddp_buckets, "takes_limits", lambda: False)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        alike = used([["4.bias", "4.weight"], ["2.bias", "2.weight"], ["0.bias", "0.weight"]])
        made = buckets_under(replace(alike.strategy, bucket_bytes=100))
        whole = used([["4.bias", "4.weight", "2.bias", "2.weight", "0.bias", "0.weight"]])
        default = buckets_under(replace(whole.strategy, bucket_bytes=25 << 20))
        for strategy in (GIVEN.strategy, replace(alike.strategy, bucket_bytes=10)):
            with pytest.raises(UserError, match=r"given\.json: .* takes no limit for each bucket"):
                buckets_under(strategy)
    finally:
        distributed.destroy_process_group()
    for buckets, strategy in ((made, alike.strategy), (default, whole.strategy)):
        assert buckets is not None
        assert [{*each} for each in buckets] == [{*each.parameters} for each in strategy.buckets]
    assert "warning" not in capfd.readouterr().err
