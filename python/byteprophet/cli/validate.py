"""``byteprophet replay --validate``: predicts jobs from one recorded, runs them, compares."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from byteprophet import schedulers
from byteprophet.bench import Case
from byteprophet.errors import UserError
from byteprophet.network import format_rate, why_not_permitted
from byteprophet.report.console import progress_of, table_console
from byteprophet.report.validation import validation_notes, validation_table
from byteprophet.validate.cases import select, validation_cases
from byteprophet.validate.run import run_missing
from byteprophet.validate.validation import compare
from byteprophet.whole_files import write_whole

POLICIES = ("stock", "fifo", "p3", "bytescheduler", "prophet-paper", "prophet")


def validate(
    base: Case,
    policies: Sequence[str],
    names: Sequence[str] | None,
    iterations: int,
    rounds: int,
    out: Path | None,
    as_json: bool,
) -> int:
    """Runs what is missing in ``out``, then compares. ``names``: only these cases. Exit status."""
    if iterations < 1 or rounds < 1:
        raise UserError("--iterations and --rounds: must be at least 1")
    for policy in policies:
        schedulers.resolve(policy, {})
    cases = select(validation_cases(base, policies), names)
    reason = why_not_permitted()
    limited = any(one.case.bandwidth_bps is not None for one in cases)
    if reason is not None and limited:
        raise UserError(f"--bandwidth: limited links need network namespaces: {reason}")
    directory = out or Path("runs") / (
        f"validate-{Path(base.workload).stem}-{base.name}-{format_rate(base.bandwidth_bps)}"
    )
    records = run_missing(
        cases,
        iterations,
        rounds,
        directory,
        reason is None,
        progress_of("validate"),
    )
    validation = compare(cases, records, directory)
    text = json.dumps(validation.as_json(), indent=1) + "\n"
    saved = directory / "validation.json"
    console = table_console()
    # First, so that it is not lost where it cannot be saved.
    if as_json:
        typer.echo(text, nl=False)
    else:
        console.print(validation_table(validation))
        for line in validation_notes(validation):
            console.print(line, soft_wrap=True)
    write_whole(saved, text)
    if not as_json:
        console.print(f"saved: {saved}", soft_wrap=True)
    return 0
