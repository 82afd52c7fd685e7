"""Strategies from files: real jobs use exactly their buckets, and train as without."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.job import Bucket, Model, Parameter, Policy, Strategy
from byteprophet.job.routes import Piece, Route
from byteprophet.job.strategy_file import Used, write_strategy
from byteprophet.timeline.read_events import load_run
from byteprophet.timeline.tables import Kind
from byteprophet.torch.retuning.given_strategy import given_strategy

WORKER = Path(__file__).with_name("strategy_worker.py")
SIZES_BYTES = {
    "0.weight": 480,
    "0.bias": 80,
    "2.weight": 1600,
    "2.bias": 80,
    "4.weight": 160,
    "4.bias": 8,
}
USED = Used(
    Model(tuple(Parameter(name, size) for name, size in SIZES_BYTES.items())),
    Strategy(
        "dear-planned",
        (
            Bucket(("4.bias", "2.weight"), 0, 5, sharded=True),
            Bucket(("4.weight", "2.bias"), 1, 3),
            Bucket(("0.bias", "0.weight"), 2, 4),
        ),
    ),
    since=0,
)
WHOLE = tuple(replace(bucket, sharded=False) for bucket in USED.strategy.buckets)
UNDER_WFBP = replace(USED, strategy=Strategy("wfbp", WHOLE))
SERVED = Used(USED.model, Strategy(partition_bytes=65536), 0, Policy("p3", {}))
ROUTED = Used(
    USED.model,
    Strategy(
        "mixed",
        (Bucket(("2.weight",), 0, 1),),
        partition_bytes=65536,
        routes=tuple(
            Route(name, (Piece(size, "mesh" if name == "2.weight" else "servers"),))
            for name, size in SIZES_BYTES.items()
        ),
        mesh="allreduce",
    ),
    0,
    Policy("p3", {}),
)


@pytest.mark.job
def test_a_job_uses_the_buckets_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under ``dear``, too, whose buckets are sharded until it adopts those that are not.

    Ranks then had the optimizer's state of their shards only, and the first update of a whole
    bucket failed.
    """
    write_strategy(tmp_path / "strategy.json", USED)
    monkeypatch.chdir(tmp_path)
    dear = replace(USED, strategy=replace(USED.strategy, runtime="dear"))
    write_strategy(tmp_path / "dear.json", dear)
    parameters = (replace(USED.model.parameters[0], size_bytes=484), *USED.model.parameters[1:])
    write_strategy(tmp_path / "other.json", replace(USED, model=Model(parameters)))
    options = ["--servers", "0", "--record"]
    assert run_cli(["run", *options, "--", sys.executable, str(WORKER), str(tmp_path)]) == 0
    # A script without servers calls no init(): its optimizer starts what records.
    (run,) = Path("runs").iterdir()
    for events in load_run(run):
        kinds = set(events.rows["kind"].tolist())
        assert {Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE, Kind.COLLECTIVE} <= kinds
    results = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    for result in results:
        for name, mode in (("given", "dear-planned"), ("dear", "dear")):
            assert result[name]["mode"] == mode
            assert result[name]["buckets"] == [
                [list(each.parameters), each.reduce_place, each.gather_place, each.sharded]
                for each in USED.strategy.buckets
            ]
            assert result[name]["parameters"] == result["plain"]["parameters"]
            assert result[name]["parameters"] == results[0]["given"]["parameters"]
        assert result["refused"] == (
            f"{tmp_path}/other.json is the strategy of another model: parameter '0.weight' has 484 "
            "bytes, and 480 in this model"
        )


def test_what_does_not_fit_the_optimizer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "strategy.json"
    assert given_strategy("", "byteps") is None
    write_strategy(path, USED)
    assert given_strategy(str(path), "allreduce") == USED
    with pytest.raises(UserError, match="'dear-planned' needs a job without servers"):
        given_strategy(str(path), "byteps")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert given_strategy(str(path), "byteps") == USED
    write_strategy(path, SERVED)
    with pytest.raises(UserError, match="it needs servers, and this job has none"):
        given_strategy(str(path), "dear")
    write_strategy(path, UNDER_WFBP)
    with pytest.raises(UserError, match="'wfbp': an optimizer can only be given byteps, allred"):
        given_strategy(str(path), "dear")
    write_strategy(path, SERVED)
    monkeypatch.setenv("DMLC_NUM_WORKER", "2")
    for scheduler, settings in (("fifo", ""), ("p3", "partition_bytes=32768")):
        monkeypatch.setenv("BYTEPS_SCHEDULER", scheduler)
        monkeypatch.setenv("BYTEPROPHET_SETTINGS", settings)
        with pytest.raises(UserError, match="not those with which this job was started"):
            given_strategy(str(path), "byteps")
    monkeypatch.setenv("BYTEPROPHET_SETTINGS", "partition_bytes=65536")
    assert given_strategy(str(path), "byteps") == SERVED
    assert given_strategy(str(path), "dear") == SERVED


def test_two_transports_need_servers_and_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "strategy.json"
    write_strategy(path, ROUTED)
    monkeypatch.setenv("BYTEPS_SCHEDULER", "p3")
    monkeypatch.setenv("BYTEPROPHET_SETTINGS", "partition_bytes=65536")
    with pytest.raises(UserError, match="it needs servers, and this job has none"):
        given_strategy(str(path), "dear")
    with pytest.raises(UserError, match=r"workers must be ranks of torch\.distributed, too"):
        given_strategy(str(path), "byteps")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert given_strategy(str(path), "byteps") == ROUTED
    monkeypatch.setenv("DMLC_NUM_WORKER", "2")
    assert given_strategy(str(path), "dear") == ROUTED
    monkeypatch.setenv("BYTEPS_SCHEDULER", "fifo")
    with pytest.raises(UserError, match="not those with which this job was started"):
        given_strategy(str(path), "byteps")


@pytest.mark.parametrize(
    ("used", "options", "said"),
    [
        (ROUTED, ["--servers", "0"], "it needs servers; leave out --servers 0"),
        (ROUTED, ["--local-ranks", "2"], "needs workers of one process, not of 2 local ranks"),
        (USED, ["--servers", "1"], "strategy.json) has no servers"),
        (SERVED, ["--servers", "0"], "it needs servers; leave out --servers 0"),
        (SERVED, ["--scheduler", "fifo"], "--scheduler is what --strategy says"),
        (SERVED, ["--set", "x=1"], "--set is what --strategy says"),
        (USED, ["--sync", "dear"], "--sync is what --strategy says"),
        (
            UNDER_WFBP,
            ["--servers", "0"],
            "cannot be given a strategy; byteps, ddp, allreduce, dear, dear-planned, fsdp2, mixed",
        ),
    ],
)
def test_what_does_not_fit_the_job_is_refused(
    used: Used, options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_strategy(tmp_path / "strategy.json", used)
    command = ["run", "--strategy", str(tmp_path / "strategy.json"), *options, "--", "true"]
    assert run_cli(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("byteprophet: error: ")
    assert said in line
