"""The figures of ``gains.py``, from the saved results of its cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gains_cells import SETS
from rich import box
from rich.console import Console
from rich.table import Table

from byteprophet.report.console import table_console

Result = dict[str, Any]
REGIONS = ("optimised, no regions", "optimised, the whole model compiled")
_SUMMARY = (
    "cells",
    "mean error",
    "worst error",
    "mean error in trials",
    "coverage",
    "gain over the default",
    "gain over the best opponent",
)


def over_best_opponent(result: Result) -> float | None:
    """How many times as fast as the best opponent the optimised job is; None: there is none."""
    times_ns = [each["iteration_ns"] for each in result["opponents"].values()]
    if times_ns:
        times_ns.append(result["baseline_ns"])  # it is an opponent, too
    return min(times_ns) / result["optimised_ns"] if times_ns else None


def summary(results: Sequence[Result]) -> dict[str, float]:
    """Errors in points, coverage of the intervals, geometric means of gains.

    "in trials": of what the replay alone expects of the candidates that ran once each.
    """
    errors = [100 * abs(each["predicted_gain"] - each["measured_gain"]) for each in results]
    trials = [trial for each in results for trial in each["trials"]]
    alone = [100 * abs(each["replayed_gain"] - each["measured_gain"]) for each in trials]
    against = [ratio for each in results if (ratio := over_best_opponent(each)) is not None]
    return {
        "cells": len(results),
        "mean error": float(np.mean(errors)),
        "worst error": max(errors),
        "mean error in trials": float(np.mean(alone)) if alone else float("nan"),
        "coverage": float(np.mean([each["held"] for each in results])),
        "gain over the default": _geometric_mean([each["measured_gain"] for each in results]),
        "gain over the best opponent": _geometric_mean(against) if against else float("nan"),
    }


def _geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def print_tables(results: Sequence[Result]) -> None:
    """The cells, then a summary of each set."""
    console = table_console(170)
    table = Table(
        "cell",
        "set",
        "predicted",
        "interval",
        "measured",
        "error (points)",
        "held",
        "trials: replayed, measured",
        "over the best opponent",
        "of",
        "over the bound",
        box=box.SIMPLE,
    )
    for each in results:
        low, high = each["interval"]
        against = over_best_opponent(each)
        opponents = each["opponents"]
        best = min(opponents, key=lambda name: opponents[name]["iteration_ns"], default="")
        table.add_row(
            each["cell"],
            each["set"],
            f"{each['predicted_gain']:.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{each['measured_gain']:.3f}",
            f"{100 * (each['predicted_gain'] - each['measured_gain']):+.1f}",
            "yes" if each["held"] else "no",
            ", ".join(
                f"{trial['replayed_gain']:.3f} {trial['measured_gain']:.3f}"
                for trial in each["trials"]
            ),
            "-" if against is None else f"{against:.3f}",
            f"{best}, {opponents[best]['tried']}" if best else "",
            f"{each['optimised_ns'] / each['bound_ns']:.3f}" if each["applied"] else "as it was",
        )
    console.print(table)
    sets = Table("set", *_SUMMARY, box=box.SIMPLE)
    for kind in SETS:
        of_set = [each for each in results if each["set"] == kind]
        if of_set:
            found = summary(of_set)
            sets.add_row(kind, *(_text(name, found[name]) for name in _SUMMARY))
    console.print(sets)
    _print_regions(console, [each for each in results if each["regions"]])
    console.print("Gains are times as fast; errors are in points of a gain.")


def _print_regions(console: Console, results: Sequence[Result]) -> None:
    """Strategies with compiled regions, beside the same ones without and with one region only."""
    if not results:
        return
    table = Table("compiled regions", *(f"over {name}" for name in REGIONS), box=box.SIMPLE)
    for each in results:
        gains = (each["regions"].get(name, 0) / each["optimised_ns"] for name in REGIONS)
        table.add_row(each["cell"], *(f"{gain:.3f}" if gain else "-" for gain in gains))
    console.print(table)


def _text(name: str, value: float) -> str:
    if name == "cells":
        return f"{value:.0f}"
    if name == "coverage":
        return f"{value:.0%}"
    return f"{value:.1f}" if "error" in name else f"{value:.3f}"
