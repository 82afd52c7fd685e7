"""The recorded command, run again without and with a strategy, in turn.

All runs are recorded, as the first one was, so that both sides carry the same cost. In each round
both run once: what changes on the machine meanwhile meets both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from byteprophet.errors import JobFailed, UserError
from byteprophet.job.strategy_file import Used
from byteprophet.job.times import Int64Array
from byteprophet.launcher import JobSpec, check_job, make_run_directory, run_job
from byteprophet.launcher.given_strategy import with_strategy
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.optimize.recorded import (
    check_repeatable_here,
    digest_of_config,
    recorded_again,
)
from byteprophet.optimize.rounds import Rounds
from byteprophet.replay.predict import warmup_of

BASELINE, OPTIMISED = "as recorded", "optimised"


@dataclass(frozen=True)
class Applied:
    """Iterations of the slowest worker, by variant and round; warm-up is left out."""

    iteration_ns: Mapping[str, Sequence[Int64Array]]

    @property
    def rounds(self) -> int:
        """How often each variant ran."""
        return len(self.iteration_ns[BASELINE])

    def median_ns(self, variant: str) -> int:
        """The median iteration of ``BASELINE`` or of another variant, over all rounds."""
        return int(np.median(np.concatenate(self.iteration_ns[variant])))

    def rounds_ns(self, variant: str) -> list[int]:
        """The median iteration of each round."""
        return [int(np.median(times_ns)) for times_ns in self.iteration_ns[variant]]

    def as_json(self) -> dict[str, Any]:
        """As ``byteprophet optimize --json`` saves it (docs/formats.md)."""
        return {
            "baseline_ns": self.median_ns(BASELINE),
            "optimised_ns": self.median_ns(OPTIMISED),
            "rounds": self.rounds,
        }


def check_repeatable(config: Mapping[str, Any], option: str) -> None:
    """Raise ``UserError``, which names ``option``, if runs of the job would differ by themselves.

    So would runs on other hosts.

    ``config``: a run's ``config.toml``.
    """
    check_repeatable_here(config)
    if config.get("steps"):
        raise UserError(f"{option}: its links changed in mid-run (--step), so rounds would differ")


def apply(
    config: Mapping[str, Any],
    strategies: Mapping[str, tuple[Used, Path]],
    runs: Path,
    rounds: int,
    progress: Callable[[str], None],
    kept: Path | None = None,
    *,
    may_fail: bool = False,
) -> Applied:
    """Run the job of ``config`` (a run's ``config.toml``) ``rounds`` times each way.

    ``strategies``: by variant, what a strategy file holds, and the file; the recorded job runs
    besides. Run directories are made in ``runs``. ``kept``: a file for the runs that have finished;
    those that it has are not made again. ``may_fail``: a strategy whose run fails is left out.
    Raises UserError before anything starts if the job cannot be run here, JobFailed if a run fails.
    """
    specs = {BASELINE: recorded_again(config, runs)}
    for variant, (used, path) in strategies.items():
        specs[variant] = with_strategy(specs[BASELINE], used, path)
    digests = {BASELINE: digest_of_config(config)}
    digests |= {variant: used.digest for variant, (used, _) in strategies.items()}
    finished = Rounds(kept, digests)
    return run_in_turn(specs, runs, rounds, progress, finished, may_fail=may_fail)


def run_in_turn(
    specs: Mapping[str, JobSpec],
    runs: Path,
    rounds: int,
    progress: Callable[[str], None],
    finished: Rounds,
    *,
    may_fail: bool = False,
) -> Applied:
    """Run each of ``specs``, recorded jobs by variant, ``rounds`` times, in turn.

    Run directories are made in ``runs``. Runs that have ``finished`` are not made again.
    ``may_fail``: a variant but ``BASELINE`` is left out if one of its runs fails or cannot be
    measured, and ``progress`` is told why. Raises UserError before anything starts if a job cannot
    be run here, JobFailed if a run fails.
    """
    left = {*specs}
    for spec in specs.values():
        check_job(spec)
    for number in range(1, rounds + 1):
        for variant in specs:
            if variant not in left or finished.done(variant) >= number:
                continue
            progress(f"round {number} of {rounds}: {variant}")
            try:
                finished.add(variant, _run_once(specs[variant], make_run_directory(runs, variant)))
            except (UserError, JobFailed) as error:
                if not may_fail or variant == BASELINE:
                    raise
                progress(f"without {variant}: {error}")
                left.remove(variant)
    return Applied({name: finished.iteration_ns(name, rounds) for name in specs if name in left})


def _run_once(spec: JobSpec, directory: Path) -> Int64Array:
    """The iterations of one run, which leaves its files in ``directory``."""
    run_job(replace(spec, run_directory=directory)).check()
    measured = measure_run(Run(directory))
    return measured.iteration_ns[warmup_of(measured) :]
