"""Jobs are moved to the other transport: a script of BytePS to none of its servers, and back."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_jobs import random_job, with_runtime

from byteprophet.cli.main import run_cli
from byteprophet.job import Job
from byteprophet.job.strategy import (
    BYTEPS,
    DDP,
    DEAR_PLANNED,
    FSDP2,
    MESH,
    OURS,
    SERVERS,
    TORCH,
)
from byteprophet.job.strategy_file import read_strategy_file
from byteprophet.launcher import JobResult, JobSpec
from byteprophet.measure.run import Run
from byteprophet.measure.servers import Measured, measure_run
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.other_transport import measure_others, transports_of, why_not
from byteprophet.optimize.outcome import corrections_of, outcome_of
from byteprophet.optimize.passes.runtime import Runtime
from byteprophet.optimize.recorded import used_by
from byteprophet.optimize.resume import Resume
from byteprophet.optimize.search import Candidate, search
from byteprophet.optimize.trials import worth_trying
from byteprophet.replay.predict import kind_of

from ..measure.test_servers import a_job
from ..namespaces import why_not_permitted
from ..thorough import THOROUGH
from .network_jobs import recorded

TORCH_TESTS = Path(__file__).parents[1] / "torch"
SCRIPT = TORCH_TESTS / "in_place_script.py"
DDP_COMMAND = [sys.executable, str(TORCH_TESTS / "retuning" / "ddp_script.py")]

CONFIG = """
command = ["python", "script.py"]
directory = "/"
workers = 2
servers = 1
scheduler = "fifo"
partition_bytes = 1048576
namespaces = false
bandwidth_bps = 60000000
timeout_s = 60.0
port = 9000

[worker_bandwidth_bps]

[environment]
"""


def measured(job: Job, times: float) -> Measured:
    """``job``, whose iterations took ``times`` as long as its replay says."""
    times_ns = np.rint(times * kind_of(job).iterations_ns(job)).astype(np.int64)
    starts_ns = np.tile(np.append(0, np.cumsum(times_ns)), (job.workers, 1))
    return Measured(job, starts_ns)


@pytest.mark.parametrize("served", [True, False])
def test_the_search_compares_measured_times_of_both(served: bool, tmp_path: Path) -> None:
    """The other transport is as much faster as it was measured, whatever its replays say."""
    jobs = a_job("fifo"), with_runtime(random_job(3, 8), DEAR_PLANNED, 0)
    recorded, other = jobs if served else reversed(jobs)
    one_ns, other_ns = (
        float(np.median(kind_of(job).iterations_ns(job))) for job in (recorded, other)
    )
    runs = measured(recorded, 1.25), measured(other, 0.5 * one_ns / other_ns)
    runtime = Runtime()
    runtime.learn_other(other)
    evaluator = Evaluator(corrections=corrections_of(*runs))
    found = search(recorded, [runtime], budget_s=5.0, evaluator=evaluator)
    outcome = outcome_of(runs[0], found, others=runs[1:])
    best = outcome.job
    assert (best.policy is None) == served
    assert outcome.predicted_ns <= 0.5 / 1.25 * 1.02 * outcome.baseline_ns
    low_ns, high_ns = outcome.interval_ns
    assert low_ns <= outcome.predicted_ns <= high_ns
    if best.strategy == other.strategy and best.policy == other.policy:
        assert outcome.predicted_ns == pytest.approx(0.5 / 1.25 * outcome.baseline_ns, rel=0.05)
    used = used_by(best, recorded)
    assert used == outcome.used
    assert used.servers == (0 if served else other.servers)
    Resume(tmp_path).keep(found.best, recorded)
    (left,) = Resume(tmp_path).left([recorded, other], [runtime], asked=True)
    assert left.move.job.strategy == found.best.job.strategy
    assert Resume(tmp_path).left([recorded], [Runtime()], asked=True) == []


def test_the_best_of_each_transport_is_tried_first() -> None:
    served, meshed = a_job("fifo"), with_runtime(random_job(3, 8), DEAR_PLANNED, 0)
    of_torch = with_runtime(random_job(3, 8), DDP, 1 << 20)
    quick, near, next_one, far = (
        Candidate(meshed, 100),
        Candidate(with_runtime(random_job(3, 8), "dear", 0), 101),
        Candidate(of_torch, 110),
        Candidate(served, 300),
    )
    families = [quick, near, next_one, far]
    assert worth_trying(families, 1) == [quick]
    assert worth_trying(families, 2) == [quick, next_one]
    assert worth_trying(families, 9) == [quick, next_one, near, far]
    assert worth_trying([], 2) == []


def test_what_cannot_be_moved(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        'workers = 2\nservers = 1\nscheduler = "fifo"\npartition_bytes = 1048576\n'
    )
    run, served = Run(tmp_path), a_job("fifo")
    assert why_not(run, served, MESH) is None
    assert transports_of(run, served, [Runtime()]) == [MESH, TORCH]
    assert transports_of(run, served, []) == []
    stock = replace(served, policy=replace(served.push_policy, name="stock"))
    assert "stock does not tell" in str(why_not(run, stock, MESH))
    ranks = with_runtime(random_job(3, 8), DEAR_PLANNED, 0)
    many = replace(ranks, times=ranks.times.of_workers(3), cluster=ranks.cluster.with_workers(3))
    assert "more than two workers" in str(why_not(run, many, SERVERS))
    assert transports_of(run, many, [Runtime()]) == []
    plain = with_runtime(ranks, DDP, 1 << 20)
    assert transports_of(run, plain, [Runtime()]) == [SERVERS, MESH]
    sharded = with_runtime(ranks, FSDP2, 1 << 20)
    assert "fsdp2 knows no other transport" in str(why_not(run, sharded, SERVERS))


def test_the_run_under_another_transport_is_that_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that another recording left is made again, and so is one that was removed."""
    made: list[Path] = []
    said: list[str] = []

    def run_job(spec: JobSpec) -> JobResult:
        made.append(spec.run_directory)
        return JobResult(0, (), None, 1.0)

    served, meshed = a_job("fifo"), with_runtime(random_job(3, 8), DEAR_PLANNED, 0)
    there = "byteprophet.optimize.other_transport"
    monkeypatch.setattr(f"{there}.run_job", run_job)
    monkeypatch.setattr(f"{there}.check_job", lambda spec: None)
    monkeypatch.setattr(f"{there}.measure_on_cores", lambda run: measured(meshed, 1.0))
    monkeypatch.setattr(f"{there}.measure_parameters", lambda run, job: (job.model, job.times))
    (tmp_path / "config.toml").write_text(CONFIG)

    def ran(job: Job) -> Path:
        (other,) = measure_others(Run(tmp_path), job, [MESH], [], tmp_path / "others", said.append)
        return other.run.directory

    assert ran(served) == ran(served) == made[0]
    assert len(made) == 1
    later = replace(served, times=replace(served.times, ready_ns=served.times.ready_ns + 1))
    assert ran(later) == ran(later) == made[1]
    (tmp_path / "config.toml").write_text(CONFIG.replace("60000000", "70000000"))
    assert ran(later) == made[2]
    made[2].rmdir()
    assert ran(later) == made[3]
    assert len(said) == 4


@pytest.mark.job(10)
@pytest.mark.skipif(why_not_permitted() is not None, reason=str(why_not_permitted()))
@pytest.mark.parametrize(
    ("runtime", "trials"), [(BYTEPS, 2), pytest.param("dear", 1, marks=THOROUGH)]
)
def test_a_real_job_runs_under_the_other_transport(
    runtime: str, trials: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best two of a job with one policy are of three runtimes without servers, or it."""
    monkeypatch.chdir(tmp_path)
    if runtime == BYTEPS:
        run = recorded(60_000_000)
    else:
        run = recorded(60_000_000, runtime, bucket_bytes=200_000)
    options = f"--budget-s 1 --pass runtime --trials {trials} --out out --json result.json"
    assert run_cli(f"optimize {run} {options}".split()) == 0
    there = Path("out/other-transport") / (MESH if runtime == BYTEPS else SERVERS)
    other = there / (there / "run").read_text().split()[0]
    assert any((other / "logs").glob("server*")) == (runtime != BYTEPS)
    assert not (there.parent / TORCH).exists()  # a bench
    kept = sorted(Path("out/trials").glob("trial-[0-9]*.json"))  # a start may run in addition
    tried = [read_strategy_file(path) for path in kept]
    assert len(tried) == trials
    assert any(each.strategy.runtime in OURS for each in tried) or runtime != BYTEPS
    assert all(each.servers == int(runtime != BYTEPS) for each in tried if each.policy)
    result = json.loads(Path("result.json").read_text())
    assert result["bound_ns"] > 0


@pytest.mark.job
def test_a_script_runs_under_the_exchange_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As recorded, it uses our mesh; what it measures under torch's is a start for the search."""
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, str(SCRIPT), str(tmp_path), "allreduce"]
    assert run_cli(["run", "--servers", "0", "--record", "--", *command]) == 0
    digests = (tmp_path / "rank-0.json").read_text()
    (directory,) = Path("runs").iterdir()
    run, runtime, said = Run(directory), Runtime(), []
    job = measure_run(run).job
    assert TORCH in transports_of(run, job, [runtime])
    found = measure_others(run, job, [TORCH], [runtime], tmp_path / "others", said.append)
    assert len(found) == 1, said
    other = found[0]
    assert (tmp_path / "rank-0.json").read_text() == digests
    of_torch = other.measured.job
    assert (of_torch.strategy.runtime, of_torch.transport) == (DDP, TORCH)
    assert {*of_torch.model.names} == {*job.model.names} - {"second.bias"}  # which is frozen
    starts = [move.job for move in runtime.starts(job)]
    assert of_torch.strategy in [each.strategy for each in starts]
    again = measure_others(run, job, [TORCH], [Runtime()], tmp_path / "others", said.append)
    assert [each.run.directory for each in again] == [other.run.directory]
    assert said == ["the recorded command under DistributedDataParallel's exchange, once"]


@pytest.mark.job
def test_a_script_of_torch_runs_over_our_mesh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows nothing of byteprophet, its buckets are fixed, and it ends with the same bits."""
    monkeypatch.chdir(tmp_path)
    command = [*DDP_COMMAND, str(tmp_path), "--find-unused"]
    assert run_cli(["run", "--servers", "0", "--record", "--", *command]) == 0
    parameters = (tmp_path / "rank-0.json").read_text()
    (directory,) = Path("runs").iterdir()
    run, runtime, said = Run(directory), Runtime(), []
    job = measure_run(run).job
    assert job.transport == TORCH
    assert job.strategy.fixed.startswith("find_unused_parameters=True")
    (other,) = measure_others(run, job, [MESH], [runtime], tmp_path / "others", said.append)
    assert (other.measured.job.strategy.runtime, other.measured.job.servers) == (DEAR_PLANNED, 0)
    ours = json.loads((tmp_path / "rank-0.json").read_text())["plain"]["parameters"]
    assert ours == json.loads(parameters)["plain"]["parameters"]
    assert said == ["the recorded command without servers, once"]
    assert {move.job.strategy.runtime for move in runtime.starts(job)} == {*OURS}
