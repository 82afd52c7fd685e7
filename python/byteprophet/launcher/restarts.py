"""Starts a job again after a role's death, so that its script goes on from its own checkpoint.

All roles start anew, with the same command, and BYTEPROPHET_RESTART says how many starts came
before. What an earlier start wrote into the run directory moves to ``attempts/<number>``. All other
files there stay, because a script may keep its checkpoint beside them. Until it has moved,
summary.json says "restarting", so that nobody who watches takes a start's end for the job's.

Nothing runs between two starts, and all of this happens in the caller's thread.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from byteprophet.errors import Error, UserError, warn
from byteprophet.launcher.plan import SUMMARY
from byteprophet.launcher.rundir import write_summary
from byteprophet.launcher.spec import Echo, JobResult, JobSpec
from byteprophet.whole_files import make_directory, writing

ATTEMPTS = "attempts"
Start = Callable[[JobSpec, Echo | None], JobResult]

_WRONG_USAGE = 2  # an exit status that the next start would have, too
# Files of a start, but none of a script.
_OF_A_START = (
    "config.toml", "job.toml", "logs", "results", "roles", "events", "network", "live", "steps",
    "processors",
    "control.jsonl", "plan.json", "tuning.jsonl", "steps.json", "profile*.json", "strategy*.json",
    "fused.json", "order.json", "summary*.json", "manifests.yaml", "pods.json",
)  # fmt: skip


def run_with_restarts(
    start: Start, prepare: Callable[[JobSpec], Start], spec: JobSpec, echo: Echo | None = None
) -> JobResult:
    """Runs ``spec`` by ``start``, and again, at most ``spec.max_restarts`` times, if it fails.

    ``prepare`` checks the job before each restart, and returns what runs it. The time limit of
    ``spec`` is that of all starts together. A job is not started again after its time limit, after
    a signal, or if one of its roles refused its arguments (exit status 2). Raises as ``run_job``.
    """
    deadline_s = time.monotonic() + spec.timeout_s
    while True:
        result = start(spec, echo)
        left_s = deadline_s - time.monotonic()
        if result.failed is None or spec.restart >= spec.max_restarts or left_s <= 0:
            return result
        if any(role.exit_status == _WRONG_USAGE and not role.stopped for role in result.roles):
            return result
        following = replace(spec, restart=spec.restart + 1, timeout_s=left_s)
        summary = spec.run_directory / SUMMARY
        write_summary(summary, "restarting", result)
        try:
            start = prepare(following)
        except UserError as error:
            failed = f"{result.failed}; it cannot be started again: {error}"
            return write_summary(summary, "failed", replace(result, failed=failed))
        except BaseException:  # Ctrl-C
            write_summary(summary, "failed", result)
            raise
        failed = result.failed.replace(
            f"{spec.run_directory}/logs/", f"{spec.run_directory}/{ATTEMPTS}/{spec.restart}/logs/"
        )
        warn(
            f"{failed}; the job starts again (restart {following.restart} of "
            f"{following.max_restarts})"
        )
        kept = _put_aside(spec.run_directory, spec.restart)
        write_summary(kept / SUMMARY, "failed", result)
        spec = following


def _put_aside(run_directory: Path, number: int) -> Path:
    """Moves what start ``number`` wrote to a folder of its own, and returns it.

    What cannot be moved stays.
    """
    kept = run_directory / ATTEMPTS / str(number)
    try:
        make_directory(kept)
        for pattern in _OF_A_START:
            for path in run_directory.glob(pattern):
                with writing(kept / path.name):
                    shutil.move(path, kept / path.name)
    except Error as error:
        warn(str(error))
    return kept
