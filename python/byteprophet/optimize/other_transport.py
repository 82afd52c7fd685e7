"""The recorded command under the other transport: with servers in place of none, or without any.

A recorded job does not tell what messages of the other transport cost, or how late its threads are.
So the command runs once more, under that transport and recorded. What this run measures is a second
job from which a search may start. The run is kept, and not made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from byteprophet import schedulers
from byteprophet.allreduce.strategies import strategy_for
from byteprophet.job import Cluster, Job, Policy, Strategy
from byteprophet.job.strategy import BYTEPS, DEAR_PLANNED, OURS
from byteprophet.job.strategy_file import Used, write_strategy
from byteprophet.launcher import check_job, make_run_directory, run_job
from byteprophet.launcher.given_strategy import with_strategy
from byteprophet.measure.parameters import measure_parameters
from byteprophet.measure.run import Run
from byteprophet.measure.servers import Measured, measure_run
from byteprophet.optimize.moves import Pass
from byteprophet.optimize.recorded import recorded_again
from byteprophet.whole_files import make_directory, write_whole

_SERVERS = 1
_DONE = "run"  # a file that names the run that was made


@dataclass(frozen=True)
class Other:
    """The recorded command under the other transport: its run, and what that measured."""

    run: Run
    measured: Measured


@runtime_checkable
class ChangesTransport(Protocol):
    """A pass that may move a job to the other transport."""

    def learn_other(self, job: Job) -> None:
        """Take the recorded command's job under the other transport, before anything else."""


def why_not(run: Run, job: Job) -> str | None:
    """Why the job of ``run`` cannot be moved to the other transport; None if it can."""
    if job.strategy.runtime not in (BYTEPS, *OURS):
        return f"a script of {job.strategy.runtime} stays without servers, and without our runtimes"
    if job.strategy.changes_gradients:
        return "its gradients are cast or accumulated, which its transport decides"
    if run.config["local_ranks"] > 1:
        return "its workers have several local ranks"
    if job.policy is not None and job.policy.name == schedulers.STOCK:
        return f"{schedulers.STOCK} does not tell when its gradients were ready"
    if job.policy is None and job.workers > 2:
        # Servers add gradients in the order in which they arrive.
        return "servers would round the sums of more than two workers otherwise"
    return None


def moves_transport(run: Run, job: Job, passes: Sequence[Pass]) -> bool:
    """Whether ``passes`` may move the job to the other transport."""
    return any(isinstance(each, ChangesTransport) for each in passes) and not why_not(run, job)


def measure_other(
    run: Run,
    job: Job,
    passes: Sequence[Pass],
    directory: Path,
    say: Callable[[str], None],
) -> Other | None:
    """Run the command of ``run`` under the other transport, and tell ``passes`` what it measured.

    ``directory``: where the run and its strategy are kept. None if no pass needs it, or the job
    cannot be moved. Raises ``UserError`` if the job cannot run here or be measured, JobFailed if it
    fails.
    """
    if not moves_transport(run, job, passes):
        return None
    other = _run_once(run, job, directory, say)
    measured = measure_run(other)
    for each in passes:
        if isinstance(each, ChangesTransport):
            each.learn_other(measured.job)
    return Other(other, measured)


def _run_once(run: Run, job: Job, directory: Path, say: Callable[[str], None]) -> Run:
    kept = directory / _DONE
    if kept.exists():
        return Run(directory / kept.read_text().strip())
    make_directory(directory)
    path = directory / "strategy.json"
    used = _first(run, job)
    write_strategy(path, used)
    spec = with_strategy(recorded_again(run.config, directory), used, path)
    check_job(spec)
    there = "without servers" if spec.all_reduce else f"with {spec.servers} server(s)"
    say(f"the recorded command {there}, once")
    made = make_run_directory(directory, used.strategy.runtime)
    run_job(replace(spec, run_directory=made)).check()
    write_whole(kept, made.name + "\n")
    return Run(made)


def _first(run: Run, job: Job) -> Used:
    """A strategy with which the other transport begins."""
    if job.strategy.runtime != BYTEPS:
        settings, partition_bytes = schedulers.resolve(schedulers.DEFAULT, {}, None)
        policy = Policy(schedulers.DEFAULT, {**settings, schedulers.PARTITION: partition_bytes})
        strategy = Strategy(partition_bytes=partition_bytes)
        return Used(job.model, strategy, 0, policy, _SERVERS)
    model, times = measure_parameters(run, job)
    ranks = Job(model, times, Cluster(job.cluster.workers), Strategy(DEAR_PLANNED))
    return Used(model, strategy_for(ranks, DEAR_PLANNED), 0)
