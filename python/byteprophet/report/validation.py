"""A validation of replays as tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from byteprophet.bench.runtimes import BYTEPS
from byteprophet.network import format_rate
from byteprophet.validate.validation import Errors, Validation


def validation_table(validation: Validation) -> Table:
    """A line per case: the recorded job first, whose prediction is its replay."""
    base = validation.cases[0].what.case
    table = Table(
        title=f"{base.workload}: recorded under {base.name} at "
        f"{format_rate(base.bandwidth_bps)}, {base.workers} workers, {base.servers} server(s); an "
        "iteration in ms",
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    table.add_column("case")
    for name in ("predicted", "interval", "measured", "error", "Daydream", "replayed", "cpu"):
        table.add_column(name, justify="right")
    for case in validation.cases:
        predicted = case.predicted
        busy = [record["machine_cpu_fraction"] for record in case.records]
        table.add_row(
            case.what.name,
            _ms(predicted.median_ns),
            f"{_ms(predicted.low_ns)}-{_ms(predicted.high_ns)}",
            _ms(case.measured_ns),
            f"{case.error:+.1%}",
            f"{case.daydream_error:+.1%}",
            ", ".join(f"{own.replay_error:+.1%}" for own in case.replayed),
            f"{max(busy):.0%}",
        )
    return table


def validation_notes(validation: Validation) -> Iterator[str]:
    """The errors over all cases, and the ranking of policies."""
    yield f"predictions of other jobs: {_said(validation.errors)}"
    yield f"Daydream's of the same: {_said(validation.daydream_errors)}"
    yield f"replays of the runs themselves: {_said(validation.replay_errors)}"
    pairs = validation.pairs()
    right = sum(pair.right for pair in pairs)
    what = "policies" if validation.cases[0].what.case.runtime == BYTEPS else "runtimes"
    yield f"pairs of {what} that differ by over 5%: {right} of {len(pairs)} in the right order"
    for pair in pairs:
        if not pair.right:
            yield f"  wrong: {pair.faster} was faster than {pair.slower}"


def _said(errors: Errors) -> str:
    return f"mean error {errors.mean:.1%}, worst {errors.worst:.1%}"


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:.0f}"
