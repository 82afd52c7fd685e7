"""A recorded run as a job that may be changed, and as a command that may run again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from byteprophet import schedulers
from byteprophet.digests import digest_of
from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.strategy import BYTEPS, DDP, MIXED
from byteprophet.job.strategy_file import Used
from byteprophet.launcher import JobSpec
from byteprophet.launcher.given_strategy import given_file, strategy_now
from byteprophet.launcher.recorded_spec import spec_of_run
from byteprophet.measure.processor_file import measure_on_cores
from byteprophet.measure.run import Run
from byteprophet.measure.servers import Measured
from byteprophet.observe import recording
from byteprophet.runtime_settings import STRATEGY, SYNC

_LEAST_ITERATIONS = 2  # the first one of a replay has none before it, and is not counted
OF_A_BENCH = "worker.toml"
"""The configuration of a bench's workers, in their run directory."""


def measure_changeable(run: Run) -> Measured:
    """Measure the job of ``run``, which is to be changed.

    Raises ``UserError`` if a needed recording is missing, if it ran under a strategy that changes
    its model (``check_given``), or if the job has two transports, compresses gradients or delays
    averages.
    """
    check_given(run.config)
    measured = measure_on_cores(run)
    strategy = measured.job.strategy
    if strategy.runtime == MIXED:
        raise UserError(
            f"{run.directory}: a search cannot change routes: give it a job of one transport, and "
            "make a mix of what it finds by byteprophet strategy make mixed"
        )
    if measured.job.iterations < _LEAST_ITERATIONS:
        raise UserError(
            f"{run.directory}: only one iteration of the same buckets was recorded completely: "
            "record more iterations"
        )
    if strategy.compressors:
        raise UserError(
            f"{run.directory}: its gradients are compressed, and no pass knows what that allows: "
            "record the job without, and compress what is found: byteprophet strategy compress"
        )
    if strategy.staleness:
        raise UserError(
            f"{run.directory}: its averages are delayed, and no pass knows what that allows: "
            "record the job without staleness, and add it to the strategy that is found"
        )
    return measured


def check_given(config: Mapping[str, Any]) -> Used | None:
    """Refuse a run whose strategy changed its model, of which a recording says nothing.

    A strategy file that is not the one of the recording any more is refused, too. Returns what it
    holds; None: the run was recorded under none.

    ``config``: the run's ``config.toml``. Raises ``UserError``.
    """
    given = given_of(config)
    if given is None:
        return None
    used = strategy_now(given)
    if used is None or used.digest != config.get("strategy_digest"):
        raise UserError(
            f"{given}: this run was recorded under the strategy in this file, and it is not there "
            "any more as it was: put that back, or record the job again"
        )
    if used.strategy.changes_model:
        raise UserError(f"this run trains as {given} says: use the run that it came from")
    return used


def check_model_known(run: Run, job: Job) -> None:
    """Refuse ``job``, which ``run`` recorded, if its strategy changed the model unknown to it.

    A run without servers, or with two transports, keeps all of its strategy. Raises ``UserError``.
    """
    if job.strategy.runtime == BYTEPS:
        check_given(run.config)


def given_of(config: Mapping[str, Any]) -> Path | None:
    """The strategy file under which the run of ``config``, its ``config.toml``, was recorded."""
    return given_file(config.get("environment", {}), Path(config.get("directory", ".")))


def why_not_distributed(run: Run, job: Job) -> str | None:
    """Why ``job``, which ``run`` recorded, cannot do what only ``DistributedOptimizer`` does.

    None: its script uses that.
    """
    if job.strategy.runtime == DDP:
        how = "uses DistributedDataParallel"
    elif run.has_config and run.config.get("environment", {}).get(SYNC):
        how = "ran with --sync, for scripts of DistributedDataParallel"
    else:
        return None
    return f"{run.directory} {how}, and only DistributedOptimizer does this"


def recorded_again(config: Mapping[str, Any], runs: Path) -> JobSpec:
    """The job of ``config``, a run's ``config.toml``, as it was and recorded again, in ``runs``.

    A strategy under which it ran is kept; one in this process' environment does not count. Raises
    ``UserError`` if the table does not describe a job, if the job ran elsewhere, or if its strategy
    file was replaced.
    """
    check_repeatable_here(config)
    check_given(config)
    spec = spec_of_run(config, runs)
    told = {recording.VARIABLE: "1", STRATEGY: spec.environment.get(STRATEGY, "")}
    return replace(spec, environment={**spec.environment, **told})


def check_repeatable_here(config: Mapping[str, Any]) -> None:
    """Raise ``UserError`` if other hosts ran the job: here, its times would be others.

    ``config``: a run's ``config.toml``.
    """
    if config.get("elsewhere"):
        raise UserError(
            "this run was recorded with --on, perhaps on other hosts, and would be repeated on "
            "this machine: run its command there, without and with --strategy"
        )


def digest_of_config(config: Mapping[str, Any]) -> str:
    """Equal for runs of the same job: of the same command, roles, links and settings.

    ``config``: a run's ``config.toml``. Its port does not count, because each run may have another.
    """
    job = {name: value for name, value in config.items() if name != "port"}
    return digest_of(json.dumps(job, sort_keys=True, default=str))


def digest_of_recording(config: Mapping[str, Any], job: Job) -> str:
    """Equal for the same recording alone: another one of the same command has other times.

    ``config``: the run's ``config.toml``. ``job``: what it measured.
    """
    times = job.times
    arrays = times.forward_ns, times.ready_ns, times.backward_ns, times.update_ns
    return digest_of(digest_of_config(config), *(each.tobytes() for each in arrays))


def used_by(job: Job, recorded: Job) -> Used:
    """The strategy of ``job``, which takes the place of ``recorded``, as a file has it.

    Its workers agree anew on the order in which they send.
    """
    servers = 0 if recorded.servers else job.servers
    policy = job.policy
    if policy is not None and policy.settings.get(schedulers.PLANNED_FOR):
        policy = replace(policy, settings={**policy.settings, schedulers.PLANNED_FOR: 0})
    return Used(job.model, job.strategy, 0, policy, servers)
