"""A grid's tables and picture, from a report as plain data."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from byteprophet.report.grid import cells_table, targets_table
from byteprophet.report.grid_plot import draw_ratios

SETTINGS = "[credit_bytes=524288,partition_bytes=262144]"


def policy(variant: str, ratio: float, over_prophet: float | None) -> dict[str, Any]:
    def spread(value: float) -> dict[str, float]:
        return {"value": value, "low": value - 0.01, "high": value + 0.01}

    return {
        "variant": variant,
        "scheduler": variant.split("[")[0],
        "phases": ["base"],
        "jobs": 2,
        "iteration_ns": {"median": 512_000_000, "mean": 0, "p10": 500_000_000, "p90": 540_000_000},
        "bound_ratio": spread(ratio),
        "over_prophet": None if over_prophet is None else spread(over_prophet),
        "machine_cpu_fraction": 0.5,
        "job_cpu_fraction": 0.45,
    }


REPORT: dict[str, Any] = {
    "grid": "mine",
    "cells": [
        {
            "cell": "a",
            "bound_ns": 500_000_000,
            "cpu_limited": False,
            "policies": [
                policy("prophet", 1.02, 1.0),
                policy("stock", 9.0, None),
                policy(f"bytescheduler{SETTINGS}", 1.2, 1.1),
            ],
        },
        {
            "cell": "b",
            "bound_ns": 700_000_000,
            "cpu_limited": True,
            "policies": [policy("prophet", 1.3, 1.0)],
        },
    ],
    "targets": [
        {
            "what": "first",
            "at_least": None,
            "at_most": 1.03,
            "over": 2,
            "value": 1.16,
            "low": 1.15,
            "high": 1.17,
            "met": False,
            "where": f"a, {SETTINGS}",
        },
        {
            "what": "second",
            "at_least": 1.1,
            "at_most": None,
            "over": 0,
            "value": None,
            "low": None,
            "high": None,
            "met": None,
            "where": None,
        },
    ],
}


def printed(table: Table) -> list[str]:
    console = Console(width=180)
    with console.capture() as capture:
        console.print(table)
    return [" ".join(line.split()) for line in capture.get().splitlines() if line.strip()]


def test_cells() -> None:
    lines = printed(cells_table(REPORT))
    assert lines[3:] == [
        "a prophet 2 512.0 500-540 1.020 1.010-1.030 1.000 0.990-1.010 0.50 / 0.45",
        "bound 500 ms stock 2 512.0 500-540 9.000 8.990-9.010 0.50 / 0.45",
        "bytescheduler[credit=512K,partition=256K] 2 512.0 500-540 1.200 1.190-1.210 1.100"
        " 1.090-1.110 0.50 / 0.45",
        "b prophet 2 512.0 500-540 1.300 1.290-1.310 1.000 0.990-1.010 0.50 / 0.45",
        "bound 700 ms",
        "cpu is the limit",
    ]


def test_targets() -> None:
    assert printed(targets_table(REPORT))[3:] == [
        "first 1.160 1.150-1.170 <= 1.03 NO 2 a, [credit=512K,partition=256K]",
        "second not measured >= 1.10 0",
    ]


def test_the_picture_has_schedulers_with_their_defaults_only() -> None:
    axes = draw_ratios(REPORT).axes[0]
    markers = [line for line in axes.lines if line.get_marker() not in ("None", None, "")]
    drawn = {line.get_label(): list(line.get_xdata()) for line in markers}
    assert drawn.keys() == {"prophet", "stock"}
    assert max(drawn["stock"]) == 4.0  # at the edge
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b *"]
