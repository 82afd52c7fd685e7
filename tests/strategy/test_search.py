"""The search: what it finds, what it keeps, and that a real job can be searched and tried."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from byteprophet.allreduce.strategies import strategy_for
from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.job import Cluster, Host, Job, Strategy
from byteprophet.job.assumed_costs import UNSURE, mesh_costs, served_costs
from byteprophet.job.owners import Owners
from byteprophet.job.strategy_file import read_strategy_file
from byteprophet.job.times import Int64Array
from byteprophet.network import why_not_permitted
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.strategy.builders import build
from byteprophet.strategy.explanation import explain
from byteprophet.strategy.resources import HostResources, Resources, write_resources
from byteprophet.strategy.search.bases import Bases, bases_of_run, bases_of_workload
from byteprophet.strategy.search.candidates import BUILDER, Predictor, distinct
from byteprophet.strategy.search.choosing import first_batch, kind_of_candidate
from byteprophet.strategy.search.engine import RouteEngine, Routing
from byteprophet.strategy.search.kept import job_under
from byteprophet.strategy.search.local import best_routings, formula_routings
from byteprophet.strategy.search.outcome import (
    BUDGET,
    NEAR_BOUND,
    NO_TRIALS,
    NOTHING_BETTER,
    Outcome,
)
from byteprophet.strategy.search.run import search
from byteprophet.strategy.search.trials import Runner
from byteprophet.strategy.search.units import Units
from byteprophet.workload import Tensor, Workload, to_toml

from .jobs import mesh_job, served_job
from .test_explanation import measured_of

RATE_BPS = 100_000_000
MODEL = Workload(
    name="small",
    batch_size=4,
    tensors=tuple(
        Tensor(f"layer{number}.weight", size, 4_000_000, 8_000_000)
        for number, size in enumerate((400_000, 2_000_000, 100_000, 1_000_000, 400_000, 2_000_000))
    ),
)


def resources(workers: tuple[float, ...], servers: tuple[float, ...] = ()) -> Resources:
    """Hosts with links of so many times ``RATE_BPS``."""
    hosts = []
    for role, parts in (("worker", workers), ("server", servers)):
        for number, part in enumerate(parts):
            rate_bps = round(RATE_BPS * part)
            own = (int(role == "worker"), int(role == "server"))
            hosts.append(HostResources(f"{role}-{number}", *own, rate_bps, rate_bps))
    return Resources(tuple(hosts), delay_ns=200_000, message_cost_ns=30_000)


def bases(workers: tuple[float, ...], servers: tuple[float, ...] = ()) -> Bases:
    return bases_of_workload(MODEL, resources(workers, servers))


class Engine:
    """Runs strategies on an engine on which servers' links are slower than resources say."""

    def __init__(self, job_bases: Bases, slower: float) -> None:
        self.predictor = Predictor(job_bases)
        self.slower, self.runs = slower, 0

    def __call__(self, files: Mapping[str, Path | None]) -> Iterator[tuple[str, Int64Array]]:
        for label, path in files.items():
            self.runs += 1
            yield label, self._times_ns(path)

    def _times_ns(self, path: Path | None) -> Int64Array:
        job = self.predictor.bases.baseline
        if path is not None:
            job = job_under(self.predictor.bases, read_strategy_file(path))
        time_ns = float(self.predictor.predicted_ns(job))
        if job.policy is not None:
            time_ns *= self.slower
        return np.full(8, round(time_ns), np.int64)


def found(
    job_bases: Bases, directory: Path, trials: int = 0, runner: Runner | None = None
) -> Outcome:
    return search(
        job_bases,
        directory,
        of="of",
        trials=trials,
        budget_s=0.5,
        seed=1,
        runner=runner,
        say=lambda text: None,
    )


def test_without_trials_the_engine_decides(tmp_path: Path) -> None:
    job_bases = bases((1, 1, 1, 1), (1, 1))
    result = found(job_bases, tmp_path)
    assert result.ended == NO_TRIALS
    assert not result.is_measured
    assert result.best is result.candidates[0]
    assert 0 <= result.gap < 0.5
    names = {each.name for each in result.candidates}
    assert {"allreduce", "partitioned-ps", "mixed", "uneven-partitioned-ps"} <= names
    # Links are busy for longer than workers compute here: both transports together are faster.
    assert result.best.job.strategy.runtime == "mixed"
    used = read_strategy_file(tmp_path / "strategy.json")
    assert used.digest == result.best.digest
    assert used.servers == 2
    assert result.explanation.limit
    assert json.dumps(result.as_json())
    # Nobody has seen messages of either transport, nor a run of this workload.
    assert result.explanation.assumed == "servers and the mesh"
    low_ns, high_ns = result.explanation.predicted.interval_ns
    unsure = 2 * UNSURE + result.engine_error
    assert low_ns <= int(result.best.engine_ns * (1 - unsure))
    assert high_ns >= int(result.best.engine_ns * (1 + unsure))


@pytest.mark.parametrize("recorded", ["mesh", "served"])
def test_mixes_are_predicted_as_explain_predicts_them(recorded: str) -> None:
    """From the run of either transport, with the costs that ``explain`` assumes for the other."""
    workers_bps, servers_bps = [RATE_BPS * 4] * 4, [RATE_BPS * 4] * 2
    if recorded == "mesh":
        mesh = mesh_job(workers_bps)
        hosts = tuple(Host(rate_bps, rate_bps) for rate_bps in servers_bps)
        delay_ns = mesh.cluster.costs.delay_ns
        both = Cluster(mesh.cluster.workers, hosts, served_costs(delay_ns), mesh.cluster.costs)
        routed, base = replace(mesh, cluster=both), mesh
    else:
        base = served_job(workers_bps, servers_bps)
        costs = mesh_costs(base.cluster.costs.delay_ns)
        routed = replace(base, cluster=replace(base.cluster, mesh_costs=costs))
        alone = Cluster(base.cluster.workers, costs=costs)
        made = replace(base, cluster=alone, policy=None, strategy=Strategy("dear-planned"))
        mesh = replace(made, strategy=strategy_for(made, "dear-planned"))
    predictor = Predictor(Bases(mesh, routed, routed, starts_servers=False))
    mixes = [build("mixed", routed), build("mixed-paced", routed), build("shares", routed)]
    units = predictor.engine.units
    mixes += [
        predictor.job_of(Routing(units.alternating(fraction), Owners.equal(4)))
        for fraction in (0.2, 0.4, 0.8)
    ]
    for job in mixes:
        assert job.strategy.runtime == "mixed"
        explained = explain(measured_of(base), job)
        assert predictor.predicted_ns(job) == pytest.approx(
            explained.predicted.iteration_ns, rel=0.01
        )
        assert predictor.predicted_ns(job) >= explained.bound_ns


def test_many_workers_are_replayed_one_by_one() -> None:
    """Two that stand for all would be faster, and nothing here replays candidates again."""
    job_bases = bases((1,) * 12, (6, 6))
    job = job_bases.served
    assert job is not None
    slower = np.random.default_rng(0).uniform(0.8, 1.2, (12, 1, 1))
    forward_ns, ready_ns = (
        (times_ns * slower).astype(np.int64)
        for times_ns in (job.times.forward_ns, job.times.ready_ns)
    )
    job = replace(job, times=replace(job.times, forward_ns=forward_ns, ready_ns=ready_ns))
    predicted_ns = Predictor(job_bases).predicted_ns(job)
    assert predicted_ns == Evaluator(folds=False)(job).iteration_ns
    assert predicted_ns > 1.01 * Evaluator()(job).iteration_ns


def of_run(job: Job, given: Resources, monkeypatch: pytest.MonkeyPatch) -> Bases:
    """The bases of ``job``, as if it had been recorded."""
    run: Any = SimpleNamespace(config={"local_ranks": 1}, directory=Path("run"))
    there = "byteprophet.strategy.search.bases.measure_parameters"
    monkeypatch.setattr(there, lambda run, job: (job.model, job.times))
    return bases_of_run(run, measured_of(job), given)


def test_mixes_shard_nothing_that_the_recorded_job_may_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = mesh_job([RATE_BPS] * 3)
    for shardable in (True, False):
        base = replace(job, strategy=replace(job.strategy, shardable=shardable))
        predictor = Predictor(of_run(base, resources((1, 1, 1), (1,)), monkeypatch))
        units = predictor.engine.units
        whole = np.array([places[0] in (0, 2) for places in units.members])
        mix = predictor.of_routing("mix", Routing(whole, Owners.equal(3))).job.strategy
        assert not any(route.is_cut for route in mix.routes)
        assert any(bucket.sharded for bucket in mix.buckets) == shardable


def test_a_run_of_both_transports_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    job = build("mixed", served_job([RATE_BPS] * 3, [RATE_BPS]))
    with pytest.raises(UserError, match="both transports: give the search a run of one of them"):
        of_run(job, resources((1, 1, 1), (1,)), monkeypatch)


def test_what_ran_with_servers_may_stay_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs beside the candidates, on the servers of its record."""
    job = served_job([RATE_BPS] * 3, [RATE_BPS])
    job_bases = of_run(job, resources((1, 1, 1)), monkeypatch)

    def run(files: Mapping[str, Path | None]) -> Iterator[tuple[str, Int64Array]]:
        for label, path in files.items():
            yield label, np.full(8, 10**6 if path is None else 2 * 10**6, np.int64)

    assert found(job_bases, tmp_path / "predicted").best.job.policy is None
    result = found(job_bases, tmp_path, 4, run)
    assert (result.best.name, result.iteration_ns) == ("as recorded", 10**6)
    used = read_strategy_file(tmp_path / "strategy.json")
    assert (used.strategy.runtime, used.policy, used.servers) == ("byteps", job.policy, 0)
    assert all(trial.candidate.job.policy is None for trial in result.trials)


def test_unequal_links_are_given_owners(tmp_path: Path) -> None:
    result = found(bases((1, 1, 1, 0.5)), tmp_path)
    equal = next(each for each in result.candidates if each.name == "dear-planned")
    assert result.best.job.strategy.owners
    # Half of an iteration's exchange is saved at most, and less with so few and large gradients.
    assert equal.engine_ns / result.best.engine_ns > 1.1


@pytest.mark.parametrize("slower", [1.0, 2.0])
def test_trials_decide_where_the_engine_is_wrong(slower: float, tmp_path: Path) -> None:
    """With servers that are half as fast as the resources say, none of them is the result."""
    job_bases = bases((1, 1, 1, 1), (1, 1))
    runner = Engine(job_bases, slower)
    result = found(job_bases, tmp_path, 8, runner)
    assert result.is_measured
    assert (result.best.job.policy is None) == (slower == 2.0)
    assert result.ended in (BUDGET, NEAR_BOUND, NOTHING_BETTER)
    assert sum(len(trial.ratios) for trial in result.trials) <= 8
    assert result.baseline_ns is not None
    # The same command again runs nothing: all of it is kept.
    again = Engine(job_bases, slower)
    repeated = found(job_bases, tmp_path, 8, again)
    assert again.runs == 0
    assert repeated.as_json() == result.as_json()


@pytest.mark.parametrize("servers", [(), (1.0, 1.0)])
def test_if_all_trials_are_slower_the_baseline_is_the_result(
    servers: tuple[float, ...], tmp_path: Path
) -> None:
    """Of a workload: its servers under the default policy, or else the planned order."""
    job_bases = bases((1, 1, 1, 1), servers)
    baseline_ns = 10**6

    def run(files: Mapping[str, Path | None]) -> Iterator[tuple[str, Int64Array]]:
        for label, path in files.items():
            yield label, np.full(8, baseline_ns if path is None else 2 * baseline_ns, np.int64)

    result = found(job_bases, tmp_path, 4, run)
    assert result.best.digest == job_bases.used(job_bases.baseline).digest
    assert result.best.name == ("ps" if servers else "dear-planned")
    assert (result.iteration_ns, result.baseline_ns) == (baseline_ns, baseline_ns)
    assert result.is_measured
    assert read_strategy_file(tmp_path / "strategy.json").digest == result.best.digest


def goes_on(directory: Path, of: str = "of", budget_s: float = 0.1) -> bool:
    """Whether a search takes up what an earlier one has left."""
    said: list[str] = []
    search(
        bases((1, 1, 1)),
        directory,
        of=of,
        trials=0,
        budget_s=budget_s,
        seed=1,
        runner=None,
        say=said.append,
    )
    return any("of an earlier search" in line for line in said)


def test_only_what_fits_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not goes_on(tmp_path)
    assert goes_on(tmp_path)
    assert not goes_on(tmp_path, budget_s=0.2)
    assert not goes_on(tmp_path, of="other resources")
    (tmp_path / "search.json").write_text("{")
    assert not goes_on(tmp_path, of="other resources")
    for name, value in (("code_version", "other"), ("describe_machine", {"cores": 512})):
        with monkeypatch.context() as patched:
            patched.setattr(f"byteprophet.strategy.search.run.{name}", lambda value=value: value)
            assert not goes_on(tmp_path, of="other resources")
            assert goes_on(tmp_path, of="other resources")


def test_the_first_trials_look_at_every_architecture() -> None:
    predictor = Predictor(bases((1, 1, 1, 0.5), (1, 1)))
    candidates = distinct(list(predictor.of_builders(lambda text: None)))
    batch = first_batch(candidates, 4)
    assert len({each.digest for each in batch}) == 4
    assert {kind_of_candidate(each) for each in batch} == {"byteps", "mixed", "mesh", "owners"}
    assert len(first_batch(candidates, 100)) == len(candidates)


def test_gradients_are_compressed_with_leave_only(tmp_path: Path) -> None:
    job_bases = bases((1, 1, 1), (1,))

    def of(name: str, allowed: list[str]) -> Outcome:
        return search(
            job_bases,
            tmp_path / name,
            of=name,
            trials=0,
            budget_s=0.2,
            seed=1,
            runner=None,
            say=lambda text: None,
            allowed=allowed,
        )

    plain, smaller = of("plain", []), of("smaller", ["*=topk,k=0.01,min_bytes=200000"])
    assert not any(each.job.strategy.compressors for each in plain.candidates)
    assert "dear-planned, compressed" in {each.name for each in smaller.candidates}
    assert smaller.best.job.strategy.compressors
    assert smaller.best.engine_ns < plain.best.engine_ns
    assert 0 <= smaller.bound_ns < plain.bound_ns
    assert smaller.gap >= 0
    names = {each.name for each in plain.candidates if each.by == BUILDER}
    assert names <= {each.name for each in smaller.candidates}  # leave is no order
    again = of("smaller", ["*=topk,k=0.01,min_bytes=200000"])
    assert [each.digest for each in again.candidates] == [
        each.digest for each in smaller.candidates
    ]
    assert again.best.job.cluster.costs.compressing


def test_local_search_is_repeatable_and_helps() -> None:
    job = bases((1, 1, 1, 0.5), (1,)).routed
    assert job is not None
    units = Units.of(job.model, 40)
    results = []
    for _ in range(2):
        engine = RouteEngine(job, units)
        # So long that the search ends because nothing helps any more.
        results.append(best_routings(engine, job, budget_s=60, seed=5))
    assert [known.iteration_ns for known in results[0]] == [
        known.iteration_ns for known in results[1]
    ]
    engine = RouteEngine(job, units)
    formula_ns = min(engine.many([routing for _, routing in formula_routings(job, units)]))
    assert results[0][0].iteration_ns <= formula_ns
    none = np.zeros(len(units), np.bool_)
    pure = [Routing(none, Owners.equal(4)), Routing(~none, Owners.equal(4))]
    assert results[0][0].iteration_ns < min(engine.many(pure))


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="share a link"):
        bases_of_workload(MODEL, Resources((HostResources("a", 1, 1),)))
    with pytest.raises(UserError, match="nothing that runs them"):
        found(bases((1, 1)), tmp_path, 3)
    idle = replace(
        MODEL, tensors=tuple(replace(t, forward_ns=0, backward_ns=0) for t in MODEL.tensors)
    )
    unlimited = Resources((HostResources("a"), HostResources("b")))
    with pytest.raises(UserError, match="nothing takes time in this job"):
        found(bases_of_workload(idle, unlimited), tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["small.toml"], "--resources: a workload needs hosts and links"),
        (["small.toml", "--resources", "none.toml"], "none.toml"),
        (["small.toml", "--resources", "cluster.toml", "--trials", "-1"], "--trials -1"),
        (["small.toml", "--resources", "cluster.toml", "--budget-s", "-1"], "--budget-s -1.0"),
        (["nothing", "--resources", "cluster.toml"], "workload 'nothing' is neither"),
        (
            ["small.toml", "--resources", "cluster.toml", "--allow", "*=topk"],
            "--allow: compressors: rule 1: k is missing: topk needs it",
        ),
        (
            ["small.toml", "--resources", "cluster.toml", "--allow", "*=onebit", "--trials", "2"],
            "--allow: trials of a workload are paced jobs, whose gradients mean nothing",
        ),
        ([".", "--resources", "cluster.toml"], ".: is neither a run directory nor has any in it"),
    ],
)
def test_wrong_input_is_one_line(
    options: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare(tmp_path, monkeypatch)
    assert run_cli(["strategy", "search", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_result_that_cannot_be_written_is_refused_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path, monkeypatch)
    monkeypatch.delattr("byteprophet.cli.strategy_search.search_strategies")
    options = ["--resources", "cluster.toml", "--json", "none/x.json"]
    assert run_cli(["strategy", "search", "small.toml", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "none/x.json: cannot be written: No such file or directory" in line


def prepare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    Path("small.toml").write_text(to_toml(MODEL))
    write_resources(Path("cluster.toml"), resources((1, 1, 1), (1,)))


def test_a_workload_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path, monkeypatch)
    options = "--resources cluster.toml --budget-s 0.2 --out found --json found.json"
    assert run_cli(["strategy", "search", "small.toml", *options.split()]) == 0
    shown = capsys.readouterr().out
    assert "no strategy that sums every byte in one place" in shown
    assert "saved: found/strategy.json" in shown
    result: dict[str, Any] = json.loads(Path("found.json").read_text())
    assert read_strategy_file(Path("found/strategy.json")).digest == result["digest"]


@pytest.mark.job
@pytest.mark.skipif(why_not_permitted() is not None, reason=str(why_not_permitted()))
def test_a_recorded_job_is_searched_and_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(to_toml(MODEL))
    job = "--workload small.toml --runtime allreduce --set bucket_bytes=100000000"
    bench = f"bench {job} --bandwidth 300mbit --iterations 4 --rounds 1 --record"
    assert run_cli(bench.split()) == 0
    (run,) = Path("runs").iterdir()
    assert run_cli(["strategy", "resources", str(run), "--out", "cluster.toml"]) == 0
    assert "300mbit" in capsys.readouterr().out
    options = "--resources cluster.toml --trials 1 --budget-s 0.2 --out found --json found.json"
    assert run_cli(["strategy", "search", str(run), *options.split()]) == 0
    result: dict[str, Any] = json.loads(Path("found.json").read_text())
    assert result["measured"]
    assert len(result["trials"]) == 1
    # All gradients were in one bucket: nothing overlapped.
    assert result["iteration_ns"] < result["baseline_ns"]
    assert result["iteration_ns"] > 0.8 * result["bound_ns"]
    made = "--resources cluster.toml --out made.json"
    assert run_cli(["strategy", "make", "dear", str(run), *made.split()]) == 0
    assert read_strategy_file(Path("made.json")).strategy.runtime == "dear"
