"""A controller's log as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from byteprophet.report.console import lines_text


def plans_table(events: Sequence[Mapping[str, Any]]) -> Table:
    """One line per plan.

    The caption tells why there is no later one, what was refused, and how often it was restarted.
    """
    table = Table(title="plans", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("plan", "from iteration", "workers", "predicted ms", "measured ms", "error"):
        table.add_column(name, justify="right")
    table.add_column("reason")
    about: dict[int, list[Mapping[str, Any]]] = {}
    for event in events:
        if event["event"] in ("adopted", "outcome"):
            about.setdefault(event["plan"], []).append(event)
    why_no_later = ""
    for event in events:
        if event["event"] == "plan":
            why_no_later = ""
            table.add_row(*_row(event, about.get(event["number"], ())))
        elif event["event"] == "no plan":
            why_no_later = f"no plan after {event['reason']}: {event['error']}"
    lives = len({event["controller"] for event in events})
    refused: dict[tuple[str, str], int] = {}
    for event in events:
        if event["event"] == "refused":
            # Counts start anew with each life of whoever counts: the largest says enough.
            who = (event["by"], event["reason"])
            refused[who] = max(refused.get(who, 0), event["count"])
    lines = [f"{lives} life of the controller" if lives == 1 else f"{lives} lives"]
    lines += [why_no_later] if why_no_later else []
    lines += [f"refused by {by}: {reason} ({n}x)" for (by, reason), n in sorted(refused.items())]
    table.caption = lines_text(lines, "table.caption")
    table.caption_justify = "left"
    return table


def _row(plan: Mapping[str, Any], about: Sequence[Mapping[str, Any]]) -> list[str]:
    """``about``: who adopted the plan, and what became of it."""
    adopted = {event["worker"] for event in about if event["event"] == "adopted"}
    told = [event for event in about if event["event"] == "outcome"]
    return [
        str(plan["number"]),
        str(plan["at_iteration"]),
        f"{len(adopted)} of {len(plan['workers'])}",
        f"{plan['predicted_iteration_ns'] / 1e6:.1f}",
        f"{told[-1]['measured_iteration_ns'] / 1e6:.1f}" if told else "",
        f"{told[-1]['error']:+.1%}" if told else "",
        plan["reason"],
    ]
