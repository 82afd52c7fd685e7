"""Runs that no search may take for the user's own job, and those that cannot be repeated here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from small_jobs import random_job, with_runtime

from byteprophet.allreduce.strategies import strategy_for
from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.strategy import ALL_REDUCE, OURS, Region
from byteprophet.job.strategy_file import Used, strategy_path, write_strategy
from byteprophet.launcher import JobSpec
from byteprophet.launcher.given_strategy import with_strategy as applied_to
from byteprophet.launcher.rundir import prepare
from byteprophet.measure.run import Run
from byteprophet.optimize.learning import learn
from byteprophet.optimize.moves import Effect, Hints, Move
from byteprophet.optimize.passes.runtime import Runtime
from byteprophet.optimize.passes.tensor_fusion import TensorFusion
from byteprophet.optimize.recorded import (
    check_given,
    digest_of_config,
    recorded_again,
    used_by,
    why_not_distributed,
)
from byteprophet.replay.all_reduce import with_strategy
from byteprophet.runtime_settings import STRATEGY, STRATEGY_MODEL, SYNC
from byteprophet.timeline.events import events_path, save_events
from byteprophet.workload.run_config import read_run_config

from ..measure import recorded_gloo
from ..measure.test_barriered import a_ring
from ..measure.test_servers import a_job

_PLACE = "given.json"
Config = Mapping[str, Any]


def given(job: Job, directory: Path) -> None:
    """Write the strategy of ``job`` where the runs below have theirs."""
    write_strategy(directory / _PLACE, used_by(job, job))


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Config]:
    """What the record of a run says, which the launcher makes when the job starts."""

    def recorded(variable: str = STRATEGY, elsewhere: bool = False) -> Config:
        environment = {variable: _PLACE}
        command = (sys.executable, "train.py")
        spec = JobSpec(command, tmp_path, servers=0, environment=environment, directory=tmp_path)
        prepare(spec, {}, environment, elsewhere=elsewhere)
        return read_run_config(tmp_path)

    return recorded


def test_a_run_with_regions_is_refused(tmp_path: Path, record: Callable[..., Config]) -> None:
    job = random_job(3, 5)
    given(job, tmp_path)
    check_given(record())
    regions = replace(job, strategy=replace(job.strategy, regions=(Region(("0",), True),)))
    given(regions, tmp_path)
    with pytest.raises(UserError, match=r"given\.json says: use the run that it came from"):
        check_given(record())
    check_given({"environment": {}})


@pytest.mark.parametrize("variable", [STRATEGY, STRATEGY_MODEL])
def test_a_strategy_file_that_was_replaced_is_not_the_recorded_one(
    variable: str, tmp_path: Path, record: Callable[..., Config]
) -> None:
    one, other = (with_runtime(random_job(3, 8), name, 1 << 20) for name in ("allreduce", "dear"))
    given(one, tmp_path)
    config = record(variable)
    assert recorded_again(config, tmp_path).environment[variable] == _PLACE
    given(other, tmp_path)
    for refused in (lambda: check_given(config), lambda: recorded_again(config, tmp_path)):
        with pytest.raises(UserError, match=r"given\.json: this run was recorded under .* as it"):
            refused()
    assert digest_of_config(config) != digest_of_config(record(variable))  # what is kept of it
    given(one, tmp_path)
    recorded_again(config, tmp_path)
    (tmp_path / _PLACE).unlink()
    with pytest.raises(UserError, match="put that back"):
        check_given(config)


@pytest.mark.parametrize("controller", [False, True])
def test_a_job_has_a_controller_if_it_had_one(tmp_path: Path, controller: bool) -> None:
    """A bench under ``prophet`` has none by default. Earlier versions did not say so.

    Strategies are compared with it, and have none either.
    """
    planned, path = a_job("prophet"), tmp_path / "strategy.json"
    used = used_by(planned, planned)
    spec = JobSpec((sys.executable, "train.py"), tmp_path, controller=controller)
    prepare(spec, {"partition_bytes": 65536}, {})
    config = dict(read_run_config(tmp_path))
    assert recorded_again(config, tmp_path).controller == controller
    assert applied_to(recorded_again(config, tmp_path), used, path).controller == controller
    del config["controller"]
    assert recorded_again(config, tmp_path).controller
    for other in ({"scheduler": "fifo"}, {"servers": 0}):
        spec = recorded_again({**config, **other}, tmp_path)
        assert not spec.controller
        assert applied_to(spec, replace(used, servers=1), path).controller


def test_a_run_of_other_hosts_is_not_repeated_here(
    tmp_path: Path, record: Callable[..., Config]
) -> None:
    given(random_job(3, 5), tmp_path)
    recorded_again(record(), tmp_path)
    with pytest.raises(UserError, match="recorded with --on") as refused:
        recorded_again(record(elsewhere=True), tmp_path)
    assert "\n" not in str(refused.value)


def test_scripts_of_torch_cannot_do_all(tmp_path: Path, record: Callable[..., Config]) -> None:
    """A script that ``--sync`` takes over, or that uses DistributedDataParallel, cannot."""
    job = with_runtime(random_job(3, 8), "dear", 1 << 20)
    record(SYNC)
    assert "ran with --sync" in str(why_not_distributed(Run(tmp_path), job))
    record()
    assert why_not_distributed(Run(tmp_path), job) is None
    plain = with_runtime(job, "ddp", 1 << 20)
    assert "uses DistributedDataParallel" in str(why_not_distributed(Run(tmp_path), plain))


class Skipping:
    """A pass of another package, which lets some steps update nothing."""

    name = "skipping"
    effect = Effect.LOSSY
    changes_steps = True

    def starts(self, job: Job) -> tuple[Move, ...]:
        return ()

    def moves(self, job: Job, hints: Hints) -> tuple[Move, ...]:
        return ()


def test_any_pass_may_say_that_it_changes_steps(
    tmp_path: Path, record: Callable[..., Config]
) -> None:
    """So it takes no part where the model counts its own, or where --sync takes a script over."""
    said: list[str] = []
    job = with_runtime(random_job(3, 5), "dear", 1 << 20)

    def takes_part() -> bool:
        learned = learn(
            [(Run(tmp_path), job)],
            [Skipping()],
            asked=False,
            budget_bytes=None,
            directory=tmp_path,
            say=said.append,
        )
        return bool(learned.passes)

    assert takes_part()
    (tmp_path / "worker.toml").touch()
    assert not takes_part()
    (tmp_path / "worker.toml").unlink()
    record(SYNC)
    assert not takes_part()
    bench, sync = said
    assert bench.startswith("without skipping: the model of a bench counts its own steps")
    assert "ran with --sync" in sync


@pytest.mark.parametrize("runtime", OURS)
def test_a_job_whose_workers_update_everything_stays_so(runtime: str) -> None:
    """Such as a script under --sync: whatever its buckets, updates take as long as recorded."""
    job = with_runtime(random_job(3, 8), ALL_REDUCE, 1 << 10)
    job = with_strategy(replace(job, strategy=replace(job.strategy, shardable=False)), job.strategy)
    others = [
        move.job
        for each in (Runtime(), TensorFusion())
        for move in (*each.starts(job), *each.moves(job, Hints()))
    ]
    others.append(with_strategy(job, strategy_for(job, runtime)))
    assert runtime in {each.strategy.runtime for each in others}
    for other in others:
        assert not other.strategy.shardable
        assert not any(bucket.sharded for bucket in other.strategy.buckets)
        assert np.array_equal(other.times.update_ns, job.times.update_ns)


def saved(ring: Job, run: Path) -> Path:
    """The directory of a recorded run of DistributedDataParallel."""
    (run / "events").mkdir(parents=True)
    (run / "config.toml").write_text(tomli_w.dumps(recorded_gloo.config_of(ring)))
    write_strategy(strategy_path(run), Used(ring.model, ring.strategy, 1))
    for events in recorded_gloo.record(ring):
        save_events(events_path(run, events.table, events.origin.role), events)
    return run


@pytest.mark.parametrize("iterations", [1, 2])
def test_one_iteration_is_not_enough(
    tmp_path: Path, iterations: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replay does not count its first one."""
    run = saved(a_ring(2, iterations), tmp_path / "run")
    options = ["--budget-s", "0.1", "--pass", "tensor-fusion", "--out", str(tmp_path / "out")]
    status = run_cli(["optimize", str(run), *options])
    said = capsys.readouterr().err
    assert (status, "only one iteration of the same buckets" in said) == (
        (2, True) if iterations == 1 else (0, False)
    ), said


def test_other_buckets_of_a_ring_of_three_need_leave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """gloo adds up an element in an order that depends on its place in the bucket."""

    def optimized(ranks: int, *options: str) -> dict[str, Any]:
        run, out = tmp_path / f"run-{ranks}", tmp_path / f"out-{ranks}-{len(options)}"
        if not run.exists():
            saved(a_ring(ranks), run)
        told = ["--budget-s", "0.5", "--out", str(out), "--json", str(tmp_path / "told.json")]
        assert run_cli(["optimize", str(run), *told, *options]) == 0
        result: dict[str, Any] = json.loads((tmp_path / "told.json").read_text())
        return result

    (exact,) = optimized(2)["decisions"]
    assert exact["pass"] == "tensor-fusion"
    result = optimized(3)
    assert result["decisions"] == []
    (would,) = (each for each in result["would_add"] if each["pass"] == "tensor-fusion")
    assert (would["effect"], would["why_not"]) == ("other rounding", None)
    (rounding,) = optimized(3, "--allow", "tensor-fusion")["decisions"]
    assert rounding["pass"] == "tensor-fusion"
    capsys.readouterr()
    assert run_cli(["optimize", str(tmp_path / "run-3"), "--pass", "tensor-fusion"]) == 2
    said = capsys.readouterr().err
    assert "pass 'tensor-fusion': other rounding in this job: allow it with --allow" in said
