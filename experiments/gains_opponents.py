"""Whom a cell of ``gains.py`` compares the optimizer with, and how each is tuned.

An opponent is what somebody can do without the optimizer: takes another policy or runtime, tries
settings by hand, compiles the whole model. A script that uses ``DistributedOptimizer`` may become
any of them, and so may the optimizer's choice. So may a script of DistributedDataParallel, by
``--sync``.

ByteScheduler and prophet may try as many settings as the optimizer runs candidates, and
DistributedDataParallel its default besides. ``dear-planned`` has one setting: it plans its buckets
itself. Each runs with its first setting (DistributedDataParallel with two). Those that are then
within ``_WORTH_TUNING`` of the fastest try their others, and the best setting of each also runs
with the whole model compiled; slower ones are not tuned. Those within ``_NEAR`` of the fastest, at
most ``_COMPARED``, take part in the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from gains_cells import BYTEPS, DDP, Cell, job_of

from byteprophet.launcher import JobSpec, make_run_directory, run_job
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.optimize.rounds import Rounds
from byteprophet.replay.predict import warmup_of

_MIB = 1 << 20
_CREDITS = ((1, 4), (0.25, 1), (4, 16), (0.5, 4), (2, 4), (1, 16))
"""Partition and credit, in MiB."""
_PARTITIONS = (None, 1, 0.25, 4, 0.5, 2)
"""In MiB; None: the policy's own."""
_CAPS = (5.0, 1.0, 10.0, 2.0, 0.5, 50.0)
"""Of DistributedDataParallel, in MB, beside its default, which everybody has for nothing."""
_PROBED = {"ddp": 2}
"""Settings with which an opponent runs first, if that is not one."""
_WORTH_TUNING, _NEAR, _COMPARED = 1.15, 1.05, 2
COMPILED = ", compiled"

Opponents = Mapping[str, Mapping[str, JobSpec]]
"""Jobs by what they try, by opponent."""


def opponents_of(
    cell: Cell, bandwidth_bps: int, iterations: int, runs: Path, trials: int
) -> Opponents:
    """The opponents in a cell, with at most ``trials`` settings each."""

    def job(**options: object) -> JobSpec:
        return job_of(cell, bandwidth_bps, iterations, runs, **options)  # type: ignore[arg-type]

    first, *others = _CAPS[:trials]
    caps = {f"bucket_cap_mb={first:g}": job(sync=DDP, bucket_cap_mb=first)}
    caps["its default of 25 MB"] = job(sync=DDP)
    caps |= {f"bucket_cap_mb={cap:g}": job(sync=DDP, bucket_cap_mb=cap) for cap in others}
    return {
        "bytescheduler": {
            f"partitions of {partition:g} MiB, credit of {credit:g} MiB": job(
                sync=BYTEPS,
                scheduler="bytescheduler",
                partition_bytes=int(partition * _MIB),
                settings={"credit_bytes": int(credit * _MIB)},
            )
            for partition, credit in _CREDITS[:trials]
        },
        "prophet": {
            "its own partitions" if size is None else f"partitions of {size:g} MiB": job(
                sync=BYTEPS,
                scheduler="prophet",
                partition_bytes=None if size is None else int(size * _MIB),
            )
            for size in _PARTITIONS[:trials]
        },
        "dear-planned": {"its own buckets": job(sync="dear-planned")},
        "ddp": caps,
    }


def compiled(spec: JobSpec) -> JobSpec:
    """The same job with the whole model compiled."""
    return replace(spec, command=(*spec.command, "--compile"))


def tuned(
    opponents: Opponents, runs: Path, kept: Path, progress: Callable[[str], None]
) -> dict[str, tuple[str, JobSpec]]:
    """By name, the opponents that take part in the rounds: what they try, and the job.

    ``kept``: a file with the runs that have finished. Raises JobFailed if a job fails.
    """
    names = [f"{name}: {what}" for name, jobs in opponents.items() for what in jobs]
    names += [name + COMPILED for name in names]
    finished = Rounds(kept, dict.fromkeys(names, ""))

    def took_ns(name: str, spec: JobSpec) -> float:
        if not finished.done(name):
            progress(name)
            made = make_run_directory(runs, "opponent")
            run_job(replace(spec, run_directory=made)).check()
            measured = measure_run(Run(made))
            finished.add(name, measured.iteration_ns[warmup_of(measured) :])
        return float(np.median(finished.iteration_ns(name, 1)[0]))

    def best_of(name: str, count: int | None) -> tuple[float, str]:
        jobs = list(opponents[name].items())[:count]
        return min((took_ns(f"{name}: {what}", spec), what) for what, spec in jobs)

    first = {name: best_of(name, _PROBED.get(name, 1))[0] for name in opponents}
    found: dict[str, tuple[float, str, JobSpec]] = {}
    for name, time_ns in first.items():
        if time_ns > _WORTH_TUNING * min(first.values()):
            continue
        best_ns, what = best_of(name, None)
        spec = opponents[name][what]
        found[name] = best_ns, what, spec
        compiled_ns = took_ns(f"{name}: {what}{COMPILED}", compiled(spec))
        found[name + COMPILED] = compiled_ns, what, compiled(spec)
    ordered = sorted(found, key=lambda name: found[name][0])
    near_ns = _NEAR * found[ordered[0]][0]
    return {name: found[name][1:] for name in ordered[:_COMPARED] if found[name][0] <= near_ns}
