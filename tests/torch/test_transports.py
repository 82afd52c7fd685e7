"""Scripts run under strategies of the other transport: with servers or without."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from byteprophet.job import Bucket, Model, Parameter, Policy, Strategy
from byteprophet.job.strategy_file import Used, write_strategy
from byteprophet.launcher import JobSpec, run_job
from byteprophet.launcher.given_strategy import with_strategy
from byteprophet.runtime_settings import SYNC
from byteprophet.torch.data_parallel import why_not

WORKER = Path(__file__).with_name("transport_worker.py")
MODEL = Model(
    tuple(
        Parameter(name, 4 * elements)
        for name, elements in (
            ("0.weight", 1024),
            ("0.bias", 64),
            ("2.weight", 2048),
            ("2.bias", 32),
            ("3.weight", 128),
            ("3.bias", 4),
        )
    )
)
SERVED = Used(MODEL, Strategy(partition_bytes=65536), 0, Policy("prophet", {}), servers=1)


def without_servers(runtime: str) -> Used:
    """Two buckets."""
    sharded = runtime != "allreduce"
    buckets = Bucket(MODEL.names[2:], 0, 1, sharded), Bucket(MODEL.names[:2], 1, 0, sharded)
    return Used(MODEL, Strategy(runtime, buckets), 0)


def trained(directory: Path, kind: str, used: Used | None, servers: int) -> list[list[str]]:
    """What both ranks of a job said, started with ``servers`` if no strategy is ``used``."""
    directory.mkdir()
    spec = JobSpec(
        command=(sys.executable, str(WORKER), str(directory), kind),
        run_directory=directory / "run",
        servers=servers,
        timeout_s=200.0,
    )
    if used is not None:
        write_strategy(directory / "strategy.json", used)
        spec = with_strategy(spec, used, directory / "strategy.json")
    run_job(spec).check()
    return [(directory / f"rank-{rank}.txt").read_text().splitlines() for rank in (0, 1)]


@pytest.mark.job
def test_a_script_of_byteps_trains_the_same_without_servers(tmp_path: Path) -> None:
    first, second = trained(tmp_path / "servers", "byteprophet", None, 1)
    assert first == second
    said = ["2 0 of 1", "metric 0: 0.5", "metric 1: 10.5", "metric 2: 20.5", "count 7"]
    assert first[:5] == said
    for kind, runtime in (("byteprophet", "dear"), ("upstream", "allreduce")):
        moved = trained(tmp_path / kind, kind, without_servers(runtime), 1)
        assert moved == [first, first]
        assert not list((tmp_path / kind / "run" / "logs").glob("server*"))


@pytest.mark.job
def test_a_script_without_servers_trains_the_same_with_them(tmp_path: Path) -> None:
    first, second = trained(tmp_path / "ranks", "dear", None, 0)
    assert first == second
    assert trained(tmp_path / "servers", "dear", SERVED, 0) == [first, first]
    assert list((tmp_path / "servers" / "run" / "logs").glob("server*"))


@pytest.mark.job
def test_the_strategy_of_another_model_is_refused_with_servers(tmp_path: Path) -> None:
    other = Model((Parameter("0.weight", 8192), *MODEL.parameters[1:]))
    used = Used(other, SERVED.strategy, 0, SERVED.policy)
    write_strategy(tmp_path / "strategy.json", used)
    spec = JobSpec(
        command=(sys.executable, str(WORKER), str(tmp_path), "byteprophet"),
        run_directory=tmp_path / "run",
        timeout_s=100.0,
    )
    failed = run_job(with_strategy(spec, used, tmp_path / "strategy.json")).failed
    assert failed is not None
    assert "another model: parameter '0.weight' has 8192 bytes, and 4096 in this model" in failed


@pytest.mark.job
def test_a_script_of_byteps_needs_a_strategy_without_servers(tmp_path: Path) -> None:
    spec = JobSpec(
        command=(sys.executable, str(WORKER), str(tmp_path), "byteprophet"),
        run_directory=tmp_path / "run",
        servers=0,
        timeout_s=100.0,
    )
    failed = run_job(spec).failed
    assert failed is not None
    assert "sync='byteps': this job has no servers: give sync='dear-planned'" in failed


@pytest.mark.parametrize(
    "used", [SERVED, without_servers("dear"), Used(MODEL, Strategy("ddp", ()), 0)]
)
@pytest.mark.parametrize("sync", ["dear-planned", "byteps"])
def test_what_takes_over_a_script_fits_the_job_of_the_strategy(
    sync: str, used: Used, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = int(sync == "byteps")
    spec = JobSpec(("x",), tmp_path, servers=servers, ranks=True, environment={SYNC: sync})
    made = with_strategy(spec, used, tmp_path / "strategy.json")
    assert made.all_reduce or made.ranks  # it still meets in its own process group
    if made.servers:
        monkeypatch.setenv("DMLC_NUM_WORKER", "2")
    else:
        monkeypatch.delenv("DMLC_NUM_WORKER", raising=False)
    now = made.environment[SYNC]
    assert (now == "") == (used.strategy.runtime == "ddp")
    assert not now or why_not(now) == ""
    plain = with_strategy(JobSpec(("x",), tmp_path, servers=1), used, tmp_path / "strategy.json")
    assert SYNC not in plain.environment
