"""The recorded command under other transports: with servers or without any, or by torch itself.

A recorded job does not tell what messages of another transport cost, or how late its threads are.
So the command runs once more, under that transport and recorded. What this run measures is another
job from which a search may start. The run is kept, and not made again.

A script of ``DistributedOptimizer`` may run on BytePS' servers, over our mesh of the ranks, or by
the exchange of DistributedDataParallel (``torch/in_place.py``), which refuses some scripts. If
memory is limited and nothing else fits, FSDP2 may shard its model (``measure_sharded``). A
script of DistributedDataParallel may have its gradients exchanged by ours (``torch/ddp``), unless
its model is unfit for that. It then keeps its own exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from byteprophet import schedulers
from byteprophet.allreduce.strategies import strategy_for
from byteprophet.errors import JobFailed, UserError
from byteprophet.job import Cluster, Job, Policy, Strategy
from byteprophet.job.peak_memory import read_peak
from byteprophet.job.strategy import (
    BYTEPS,
    DDP,
    DEAR_PLANNED,
    FSDP2,
    MESH,
    OURS,
    SERVERS,
    SHARDED,
    TORCH,
    Bucket,
)
from byteprophet.job.strategy_file import Used, write_strategy
from byteprophet.job.units import block_units
from byteprophet.launcher import check_job, make_run_directory, run_job
from byteprophet.launcher.given_strategy import with_strategy
from byteprophet.measure.parameters import measure_parameters
from byteprophet.measure.processor_file import measure_on_cores
from byteprophet.measure.run import Run
from byteprophet.measure.servers import Measured
from byteprophet.optimize.blame import blaming
from byteprophet.optimize.moves import Pass
from byteprophet.optimize.recorded import OF_A_BENCH, digest_of_recording, recorded_again
from byteprophet.runtime_settings import SHARDED_MEMORY
from byteprophet.whole_files import make_directory, write_whole

TRANSPORTS = {
    SERVERS: "with servers",
    MESH: "without servers",
    TORCH: "under DistributedDataParallel's exchange",
    SHARDED: "with its model sharded by FSDP2",
}
"""How a job runs under each."""

_SERVERS = 1
_DONE = "run"
"""A file that names the run that was made. Its second line is a digest of the recorded run."""


@dataclass(frozen=True)
class Other:
    """The recorded command under another transport: its run, and what that measured."""

    run: Run
    measured: Measured


@runtime_checkable
class ChangesTransport(Protocol):
    """A pass that may move a job to another transport."""

    def learn_other(self, job: Job) -> None:
        """Take the recorded command's job under another transport, before anything else."""


def why_not(run: Run, job: Job, transport: str) -> str | None:
    """Why the job of ``run`` cannot be moved to ``transport``; None if it can."""
    if job.strategy.runtime not in (BYTEPS, DDP, *OURS):
        return f"a job of {job.strategy.runtime} knows no other transport"
    if job.strategy.changes_gradients:
        return "its gradients are cast or accumulated, which its transport decides"
    if run.config["local_ranks"] > 1:
        return "its workers have several local ranks"
    if job.policy is not None and job.policy.name == schedulers.STOCK:
        return f"{schedulers.STOCK} does not tell when its gradients were ready"
    if job.policy is None and job.workers > 2:
        # Servers add gradients in the order in which they arrive, and gloo in that of a ring.
        return f"{transport} would round the sums of more than two workers otherwise"
    if transport == TORCH and (run.directory / OF_A_BENCH).exists():
        return "the workers of a bench record their own spans"
    return None


def transports_of(run: Run, job: Job, passes: Sequence[Pass]) -> list[str]:
    """The transports to which ``passes`` may move the job."""
    if not any(isinstance(each, ChangesTransport) for each in passes):
        return []
    others = [each for each in TRANSPORTS if each not in (job.transport, SHARDED)]
    return [each for each in others if not why_not(run, job, each)]


def measure_sharded(
    run: Run, job: Job, passes: Sequence[Pass], directory: Path, say: Callable[[str], None]
) -> tuple[Other, int] | None:
    """Run the command of ``run`` once under FSDP2: what that measured, and its peak in bytes.

    ``passes`` are told of it, as by ``measure_others``. None if no pass may move the job there, or
    if FSDP2 refuses the script; ``say`` is told why.
    """
    movers = [each for each in passes if isinstance(each, ChangesTransport)]
    if not movers:
        say(f"not {TRANSPORTS[SHARDED]}: no pass that takes part changes the runtime")
        return None
    why = why_not(run, job, SHARDED)
    if why is None and job.policy is not None:
        why = "it has servers"
    if why is not None:
        say(f"not {TRANSPORTS[SHARDED]}: {why}")
        return None
    try:
        made = _run_once(run, job, SHARDED, directory / SHARDED, say)
        other = Other(made, measure_on_cores(made))
        peak_bytes = read_peak(made.directory, job.workers)
    except (UserError, JobFailed) as error:
        say(f"not {TRANSPORTS[SHARDED]}: {error}")
        return None
    for each in movers:
        with blaming(each):
            each.learn_other(other.measured.job)
    return other, peak_bytes


def measure_others(
    run: Run,
    job: Job,
    transports: Sequence[str],
    passes: Sequence[Pass],
    directory: Path,
    say: Callable[[str], None],
) -> list[Other]:
    """Run the command of ``run`` under ``transports``, and tell ``passes`` what it measured.

    ``directory``: where the runs and their strategies are kept. A transport under which the command
    fails or cannot be measured is left out, and ``say`` is told why. So is one under which a model
    of DistributedDataParallel kept its own exchange.
    """
    others = []
    for transport in transports:
        try:
            made = _run_once(run, job, transport, directory / transport, say)
            other = Other(made, measure_on_cores(made))
        except (UserError, JobFailed) as error:
            say(f"not {TRANSPORTS[transport]}: {error}")
            continue
        if other.measured.job.transport != transport:
            say(f"not {TRANSPORTS[transport]}: the model keeps its own exchange, as its run says")
            continue
        others.append(other)
        for each in passes:
            if isinstance(each, ChangesTransport):
                with blaming(each):
                    each.learn_other(other.measured.job)
    return others


def _run_once(
    run: Run, job: Job, transport: str, directory: Path, say: Callable[[str], None]
) -> Run:
    kept, digest = directory / _DONE, digest_of_recording(run.config, job)
    known = _known(kept, digest)
    if known is not None:
        return known
    make_directory(directory)
    path = directory / "strategy.json"
    used = _first(run, job, transport)
    write_strategy(path, used)
    spec = with_strategy(recorded_again(run.config, directory), used, path)
    check_job(spec)
    say(f"the recorded command {TRANSPORTS[transport]}, once")
    made = make_run_directory(directory, used.strategy.runtime)
    if transport == SHARDED:
        environment = {**spec.environment, SHARDED_MEMORY: str(made.absolute())}
        spec = replace(spec, environment=environment)
    run_job(replace(spec, run_directory=made)).check()
    write_whole(kept, f"{made.name}\n{digest}\n")
    return Run(made)


def _known(kept: Path, digest: str) -> Run | None:
    """The run that ``kept`` names; None if there is none, or if it is that of another recording."""
    if not kept.exists():
        return None
    name, *of = kept.read_text().splitlines() or [""]
    made = kept.parent / name
    return Run(made) if of == [digest] and made.is_dir() else None


def _first(run: Run, job: Job, transport: str) -> Used:
    """A strategy with which another transport begins."""
    if transport == SERVERS:
        settings, partition_bytes = schedulers.resolve(schedulers.DEFAULT, {}, None)
        policy = Policy(schedulers.DEFAULT, {**settings, schedulers.PARTITION: partition_bytes})
        strategy = Strategy(partition_bytes=partition_bytes)
        return Used(job.model, strategy, 0, policy, _SERVERS)
    if transport == SHARDED:
        sizes = dict(zip(job.model.names, job.model.sizes_bytes, strict=True))
        units = block_units(sizes)
        buckets = (
            Bucket(unit, 2 * len(units) - place, place, sharded=True)
            for place, unit in enumerate(units)
        )
        return Used(job.model, Strategy(FSDP2, tuple(buckets)), 0)
    runtime = DEAR_PLANNED if transport == MESH else DDP
    model, times = job.model, job.times
    if job.policy is not None:
        model, times = measure_parameters(run, job)
    ranks = Job(model, times, Cluster(job.cluster.workers), Strategy(runtime))
    return Used(model, strategy_for(ranks, runtime), 0)
