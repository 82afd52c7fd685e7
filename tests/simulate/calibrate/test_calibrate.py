"""Calibration finds constants that made measured times; intervals grow with what is not known."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.calibrate.fit import calibrate
from byteprophet.simulate.calibrate.interval import MODEL_FASTER, MODEL_SLOWER, interval
from byteprophet.simulate.calibrate.runs import read_runs
from byteprophet.simulate.clusters.beliefs import Beliefs, Source
from byteprophet.simulate.clusters.constants import constants, uncertain, with_constants
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.clusters.write import write_cluster
from byteprophet.simulate.compile.program import Program
from byteprophet.simulate.costs.sources import cluster_with_costs
from byteprophet.simulate.costs.table import CostTable, write_table
from byteprophet.simulate.execute.simulate import simulate_program

from ..jobs import program

CLUSTER = find_cluster("dgx-a100")
JOBS = (
    ("gpt3-175b", "tp=8 pp=2 micro_batches=4", 16),
    ("gpt2-xl", "dp=16 micro_batch=4 overlap=0", 16),
    ("gpt:layers=24,hidden=512,heads=8,sequence=256", "dp=8", 8),  # launches are its limit
)


@dataclass(frozen=True)
class Ran:
    program: Program
    measured_ns: float


def ran(cluster: Cluster, count: int, factor: float = 1.0) -> list[Ran]:
    """Jobs as they would be measured on ``cluster``."""
    programs = [program(*job) for job in JOBS[:count]]
    return [Ran(one, factor * simulate_program(one, cluster).iteration_ns) for one in programs]


def value(cluster: Cluster, name: str) -> float:
    return next(one.value for one in constants(cluster) if one.name == name)


def test_one_run_sets_what_it_depends_on() -> None:
    truth = with_constants(CLUSTER, {"gpu.matmul_efficiency": 0.78})
    found = calibrate(ran(truth, 1), CLUSTER, "a test")
    assert abs(found.errors[0]) < abs(found.errors_before[0]) / 2
    assert value(found.cluster, "gpu.matmul_efficiency") < 0.81
    assert "gpu.matmul_efficiency" in found.set_by_runs
    assert "network.step_ns" not in found.set_by_runs
    assert found.learnt < 1.01
    assert found.cluster.beliefs.of("gpu.matmul_efficiency").text == "a test"
    assert value(found.cluster, "network.step_ns") == pytest.approx(5000, rel=0.05)


def test_several_runs_tell_constants_apart() -> None:
    """The constants that made the times are found again, within what is said of them."""
    wanted = {"gpu.matmul_efficiency": 0.76, "network.efficiency": 0.85, "gpu.launch_ns": 10_000}
    truth = with_constants(CLUSTER, wanted)
    found = calibrate(ran(truth, 3), CLUSTER, "a test")
    assert max(map(abs, found.errors)) < 0.03
    after = {one.name: one for one in found.after}
    for name, right in wanted.items():
        assert abs(math.log(after[name].value / right)) < 2 * after[name].uncertainty
        was = value(CLUSTER, name)
        assert abs(after[name].value / right - 1) < abs(was / right - 1)


def test_a_run_that_contradicts_the_description_counts() -> None:
    found = calibrate(ran(CLUSTER, 1, factor=1.4), CLUSTER, "a test")
    assert found.wider > 2
    assert abs(found.errors[0]) < 0.05
    assert abs(found.errors_before[0] - (1 / 1.4 - 1)) < 1e-9


def test_a_run_that_is_far_off_among_others_counts_little() -> None:
    runs = ran(CLUSTER, 1) * 6
    runs[3] = replace(runs[3], measured_ns=1.6 * runs[3].measured_ns)
    found = calibrate(runs, CLUSTER, "a test")
    assert abs(found.errors[0]) < 0.01


def test_a_constant_on_which_a_time_hardly_depends_is_no_factor_without_bound() -> None:
    """Only the small time per collective may explain a run that takes three times as long."""
    exact = {one.name: Source("exact", 0.0) for one in constants(CLUSTER)}
    name = "node.base_ns"
    beliefs = Beliefs({**exact, name: Source("a guess", 1.5)})
    cluster = replace(CLUSTER, beliefs=beliefs)
    (run,) = ran(cluster, 1)
    found = calibrate([replace(run, measured_ns=3 * run.measured_ns)], cluster, "a test")
    assert value(cluster, name) < value(found.cluster, name) < run.measured_ns
    assert abs(found.errors[0]) < abs(found.errors_before[0]) / 2


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_constants_that_are_fully_correlated_move_together(sign: float) -> None:
    names = ("gpu.matmul_efficiency", "gpu.memory_efficiency")
    pairs = {names: sign, names[::-1]: sign}
    cluster = replace(CLUSTER, beliefs=replace(CLUSTER.beliefs, correlations=pairs))
    found = calibrate(ran(cluster, 1, factor=1.03), cluster, "a test")
    before, after = ({one.name: one for one in each} for each in (found.before, found.after))
    moved = [
        math.log(after[name].value / before[name].value) / before[name].uncertainty
        for name in names
    ]
    assert moved[0] < -0.1
    assert moved[1] == pytest.approx(sign * moved[0], rel=1e-6)
    correlation = found.cluster.beliefs.correlations[names]
    assert correlation == pytest.approx(sign, abs=1e-6)


def test_if_all_constants_are_exact_runs_set_none() -> None:
    exact = {one.name: Source("exact", 0.0) for one in constants(CLUSTER)}
    cluster = replace(CLUSTER, beliefs=Beliefs(exact))
    with pytest.raises(UserError, match="cluster dgx-a100: all its constants have uncertainty = 0"):
        calibrate(ran(cluster, 1), cluster, "a test")


def test_the_interval_is_that_of_normal_distributions() -> None:
    """With one uncertain constant: as a fine grid of it says."""
    exact = {one.name: Source("exact", 0.0) for one in constants(CLUSTER)}
    sources = {**exact, "gpu.matmul_efficiency": Source("a test", 0.04)}
    cluster = replace(CLUSTER, beliefs=Beliefs(sources))
    result = simulate_program(program(*JOBS[0]), cluster)
    found = interval(result, cluster)
    (only,) = found.influences
    assert only.name == "gpu.matmul_efficiency"
    times = [
        simulate_program(
            result.program, with_constants(cluster, {only.name: only.value * math.exp(step)})
        ).iteration_ns
        for step in np.linspace(-0.08, 0.08, 9)
    ]
    deviation = 0.04 * abs(np.log(times[-1] / times[0])) / 0.16
    assert found.of_constants == pytest.approx(deviation, rel=0.05)
    for end, model in ((found.low_ns, MODEL_FASTER), (found.high_ns, MODEL_SLOWER)):
        half = abs(math.log(end / result.iteration_ns))
        assert half == pytest.approx(1.6449 * math.hypot(deviation, model), rel=0.05)


def test_a_measured_run_narrows_the_interval() -> None:
    cluster = find_cluster("dgx-h100")
    found = calibrate(ran(cluster, 1), cluster, "a test")
    result = simulate_program(program(*JOBS[0]), cluster)
    assert interval(result, found.cluster).of_constants < interval(result, cluster).of_constants / 2


def test_a_calibrated_cluster_is_the_same_when_it_is_read(tmp_path: Path) -> None:
    found = calibrate(ran(CLUSTER, 2, factor=1.1), CLUSTER, "a test").cluster
    write_cluster(tmp_path / "cluster.toml", found)
    read = find_cluster(str(tmp_path / "cluster.toml"))
    assert {one.name: one.value for one in constants(read)} == {
        one.name: one.value for one in constants(found)
    }
    assert [one.source for one in uncertain(read)] == [one.source for one in uncertain(found)]
    result = simulate_program(program(*JOBS[0]), found)
    one, other = interval(result, found), interval(result, read)
    assert other.of_constants == pytest.approx(one.of_constants, rel=0.05)
    write_cluster(tmp_path / "links.toml", find_cluster("dgx-1v"))
    assert find_cluster(str(tmp_path / "links.toml")) == find_cluster("dgx-1v")


def test_a_cluster_that_contradictory_runs_made_uncertain_can_be_read(tmp_path: Path) -> None:
    """Of one that is stated as 1.5, runs that contradict it would leave up to four times that."""
    sources = {**CLUSTER.beliefs.sources, "network.step_ns": Source("a guess", 1.5)}
    cluster = replace(CLUSTER, beliefs=Beliefs(sources))
    found = calibrate(ran(cluster, 1, factor=3.0), cluster, "a test")
    assert found.wider > 2
    write_cluster(tmp_path / "cluster.toml", found.cluster)
    read = find_cluster(str(tmp_path / "cluster.toml"))
    (before,) = (one for one in found.after if one.name == "network.step_ns")
    (after,) = (one for one in uncertain(read) if one.name == "network.step_ns")
    assert before.uncertainty == after.uncertainty == 2


def test_all_correlations_that_runs_leave_can_be_read(tmp_path: Path) -> None:
    """Without the small ones, the others contradict each other in one case of seven."""
    cluster = find_cluster("dgx-h100")
    names = [one.name for one in uncertain(cluster)]
    path = tmp_path / "cluster.toml"
    for seed in range(30):
        slopes = np.random.default_rng(seed).normal(size=(3, len(names)))
        left = np.linalg.inv(np.eye(len(names)) + 1e6 * slopes.T @ slopes)
        spread = np.sqrt(np.diag(left))
        correlation = left / np.outer(spread, spread)
        pairs = {
            (one, other): float(correlation[row, column])
            for row, one in enumerate(names)
            for column, other in enumerate(names)
            if row != column
        }
        beliefs = replace(cluster.beliefs, correlations=pairs)
        write_cluster(path, replace(cluster, beliefs=beliefs))
        read = find_cluster(str(path)).beliefs.correlation(names)
        assert read == pytest.approx(correlation, abs=1e-8)


def test_a_cluster_that_was_calibrated_with_costs_keeps_both(tmp_path: Path) -> None:
    """Measured times are relative to the constants before, and the calibrated ones hold."""
    products = tuple(
        (m, n, 1024, m * n / 100 + 5_000) for m in (128, 2048, 8192) for n in (1024, 8192)
    )
    table = CostTable("a test", products, collectives=(("all-reduce", 2, 1 << 28, 4e7),))
    costs, saved = tmp_path / "tables" / "costs.json", tmp_path / "cluster.toml"
    costs.parent.mkdir()
    write_table(costs, table)
    measured = cluster_with_costs("dgx-a100", str(costs))
    found = calibrate(ran(measured, 2, factor=1.1), measured, "a test").cluster
    write_cluster(saved, found)
    assert 'costs = "tables/costs.json"' in saved.read_text("utf-8")
    for given in ("", str(costs)):
        read = cluster_with_costs(str(saved), given)
        for job in JOBS:
            one, other = (simulate_program(program(*job), each) for each in (found, read))
            assert one.iteration_ns == other.iteration_ns
        assert [one.source for one in uncertain(read)] == [one.source for one in uncertain(found)]
    write_table(tmp_path / "others.json", replace(table, launch_ns=9.0))
    with pytest.raises(UserError, match="its constants fit those: leave out --costs"):
        cluster_with_costs(str(saved), str(tmp_path / "others.json"))


@pytest.mark.parametrize("name", ["runs.csv", "runs.toml"])
def test_runs_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("csv"):
        text = 'model,strategy,gpus,seconds\ngpt2,"dp=4,tp=2",8,0.25\n'
    else:
        text = '[[runs]]\nmodel = "gpt2"\nstrategy = "dp=4,tp=2"\ngpus = 8\nseconds = 0.25\n'
    text = text.replace("gpt2", "gpt3-175b").replace("dp=4,tp=2", "tp=8")
    path.write_text(text, encoding="utf-8")
    (run,) = read_runs(path, CLUSTER)
    assert run.measured_ns == 0.25e9
    assert run.program.strategy.mesh.tp == 8
    assert run.text == "gpt3-175b on 8 GPUs, tp=8"


def test_a_runs_strategy_may_be_a_file(tmp_path: Path) -> None:
    path, strategy = tmp_path / "runs.csv", tmp_path / "strategy.toml"
    split = 'split = { tp = ["heads", "inner", "vocabulary"] }'
    strategy.write_text(f'[mesh]\ntp = 8\n[nodes.""]\n{split}\n', encoding="utf-8")
    row = f"gpt3-175b,{strategy},8,0.25"
    path.write_text(f"model,strategy,gpus,seconds\n{row}\n", encoding="utf-8")
    (run,) = read_runs(path, CLUSTER)
    assert run.program.strategy.mesh.tp == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model,gpus,seconds\n", "no column strategy"),
        ("model,strategy,gpus,seconds\n", "has no runs"),
        ("model,strategy,gpus,seconds\ngpt2,,8,-1\n", "run 1: seconds is '-1'"),
        ("model,strategy,gpus,seconds\ngpt2,,8.5,1\n", "run 1: gpus is '8.5'"),
        ("model,strategy,gpus,seconds\ngpt2,,8,1,9\n", "run 1: a value too many"),
        ("model,strategy,gpus,seconds,speed\ngpt2,,8,1,9\n", "run 1: speed: there is no such"),
        ("model,strategy,gpus,seconds\ngpt2,tp=3,8,1\n", "run 1: strategy: tp x pp"),
        ("model,strategy,gpus,seconds\nnothing,,8,1\n", "run 1: model nothing"),
    ],
)
def test_wrong_runs_are_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=said):
        read_runs(path, CLUSTER)


@pytest.mark.parametrize(
    ("before", "within", "said"),
    [
        ("sequence = 4096\n", "", "runs.toml: sequence: there is no such key: use one table"),
        ("", "sequence = 0\n", "run 1: sequence is 0: must be a positive whole number"),
        ("", "sequence = false\n", "run 1: sequence is False: must be"),
    ],
)
def test_no_key_of_a_file_of_runs_is_ignored(
    tmp_path: Path, before: str, within: str, said: str
) -> None:
    path = tmp_path / "runs.toml"
    run = 'model = "gpt2"\nstrategy = ""\ngpus = 1\nseconds = 0.25\n'
    path.write_text(f"{before}[[runs]]\n{run}{within}", encoding="utf-8")
    with pytest.raises(UserError, match=said):
        read_runs(path, CLUSTER)
