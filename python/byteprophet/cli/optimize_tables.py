"""What ``byteprophet optimize`` prints: tables about an outcome."""

from __future__ import annotations

from rich.table import Table

from byteprophet.optimize.apply import BASELINE, OPTIMISED, Applied
from byteprophet.optimize.outcome import Outcome
from byteprophet.report.console import facts_table, ms_text, shares_text


def outcome_table(outcome: Outcome) -> Table:
    """What was recorded, what is predicted and why."""
    table = facts_table("an iteration")
    low_ns, high_ns = outcome.interval_ns
    table.add_row("recorded", ms_text(outcome.baseline_ns), f"replay {outcome.replay_error:+.1%}")
    within = f"{low_ns / 1e6:.1f} to {high_ns / 1e6:.1f} nine times in ten"
    table.add_row("predicted", ms_text(outcome.predicted_ns), within)
    below = 1 - outcome.bound_ns / outcome.predicted_ns
    table.add_row("bound", ms_text(outcome.bound_ns), f"{below:.1%} below what is predicted")
    table.add_row("critical path", "before", shares_text(outcome.path_before))
    if outcome.gains:
        table.add_row("", "after", shares_text(outcome.path_after))
    if outcome.memory is not None:
        was = "not known" if outcome.memory.baseline is None else _mb(outcome.memory.baseline)
        limit = f"recorded: {was}; budget: {_mb(outcome.memory.budget)}"
        table.add_row("memory", _mb(outcome.memory.predicted), limit)
    if outcome.compile_ns:
        took = f"{outcome.compile_ns / 1e9:.0f} s"
        paid = outcome.pays_after
        table.add_row(
            "compiling", took, "" if paid is None else f"paid back after {paid} iterations"
        )
    for decision in outcome.decisions:
        table.add_row(decision.by, f"{-decision.gain_ns / 1e6:+.1f} ms", decision.what)
    for reason in outcome.reasons:
        if reason.theorem:
            gain = f"{-reason.gain_ns / 1e6:+.1f} ms"
            table.add_row(reason.theorem, gain, reason.text)
    return table


def applied_table(outcome: Outcome, applied: Applied) -> Table:
    """What was measured beside what was predicted."""
    was_ns, is_ns = applied.median_ns(BASELINE), applied.median_ns(OPTIMISED)
    held = "held" if outcome.holds(was_ns, is_ns) else "did not hold"
    table = facts_table(f"measured in {applied.rounds} round(s)")
    table.add_row("as recorded", ms_text(was_ns), "")
    table.add_row("optimised", ms_text(is_ns), f"{was_ns / is_ns:.3f} times as fast")
    predicted = outcome.baseline_ns / outcome.predicted_ns
    table.add_row("predicted", "", f"{predicted:.3f} times as fast; the interval {held}")
    return table


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"
