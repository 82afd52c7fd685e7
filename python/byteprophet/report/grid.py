"""The report of a grid on the terminal: a table of cells and policies, then the targets."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from byteprophet.report.console import lines_text

Report = Mapping[str, Any]
Row = Mapping[str, Any]

_BYTES = re.compile(r"([a-z_]+)_bytes=(\d+)")

_DISTURBED = 0.15
"""Share of all cores; the job's own is known to a few percent only."""


def cells_table(report: Report) -> Table:
    """A line per cell and policy, the cells that the processor limits marked."""
    table = _table(f"grid {report['grid']}: paced compute, real bytes")
    for name in ("cell", "policy"):
        table.add_column(name, overflow="fold")
    columns = ("jobs", "iteration ms", "p10-p90", "x bound", "95%", "/ prophet", "95%", "cpu / own")
    for name in columns:
        table.add_column(name, justify="right")
    for cell in report["cells"]:
        for text, policy in itertools.zip_longest(_cell_texts(cell), cell["policies"]):
            _add(table, text or "", *(_policy_texts(policy) if policy else ()))
        table.add_section()
    return table


def targets_table(report: Report) -> Table:
    """A line per target: figure, interval, what is asked for, and where it is decided."""
    table = _table("targets")
    table.add_column("target", overflow="fold")
    for name in ("figure", "95%", "asked for"):
        table.add_column(name, justify="right")
    table.add_column("met")
    table.add_column("over", justify="right")
    table.add_column("decided by", overflow="fold")
    for row in report["targets"]:
        _add(
            table,
            row["what"],
            _number(row["value"]),
            _interval(row),
            _asked(row),
            {True: "yes", False: "NO", None: ""}[row["met"]],
            str(row["over"]),
            _shortened(row["where"] or ""),
        )
    return table


def notes(report: Report) -> list[str]:
    """What a reader must know beside the tables, a line each."""
    lines = []
    there = len(report["cells"])
    if there < report["cells_in_grid"]:
        lines.append(f"{there} of {report['cells_in_grid']} cells have been measured")
    lines += code_notes(report["code"], report["code_now"])
    if len(report["machines"]) > 1:
        lines.append(
            f"measured on {len(report['machines'])} machines, or with other kernels or torch: "
            "jobs are compared with those of the same one only"
        )
    if report["failed"]:
        lines.append(f"{report['failed']} jobs failed: see jobs.jsonl")
    disturbed = [
        policy["machine_cpu_fraction"] - policy["job_cpu_fraction"]
        for cell in report["cells"]
        for policy in cell["policies"]
    ]
    if max(disturbed) > _DISTURBED:
        lines.append(
            f"other programs took up to {max(disturbed):.0%} of the processor meanwhile: "
            "these figures are not to be relied on"
        )
    lines += [
        f"{cell['cell']}: parameters differ between policies"
        for cell in report["cells"]
        if not cell["parameters_equal"]
    ]
    return lines


def code_notes(codes: Sequence[str], now: str) -> list[str]:
    """A line where something was measured with other code than there is ``now``."""
    if set(codes) <= {now}:
        return []
    return [f"measured with other code: {', '.join(codes)}; now {now}"]


def _table(title: str) -> Table:
    return Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")


def _add(table: Table, *texts: str) -> None:
    """Adds a row as it is: what stands in brackets is no markup."""
    table.add_row(*(lines_text([text]) for text in texts))


def _shortened(text: str) -> str:
    """``credit_bytes=524288`` as ``credit=512K``."""
    return _BYTES.sub(lambda match: f"{match[1]}={int(match[2]) // 1024}K", text)


def _cell_texts(cell: Row) -> list[str]:
    limited = ["cpu is the limit"] if cell["cpu_limited"] else []
    return [cell["cell"], f"bound {cell['bound_ns'] / 1e6:.0f} ms", *limited]


def _policy_texts(policy: Row) -> Sequence[str]:
    times, against = policy["iteration_ns"], policy["over_prophet"]
    tuning = policy["phases"] == ["tuning"]
    return (
        _shortened(policy["variant"]) + ", mean of all" * tuning,
        str(policy["jobs"]),
        f"{times['mean' if tuning else 'median'] / 1e6:.1f}",
        f"{times['p10'] / 1e6:.0f}-{times['p90'] / 1e6:.0f}",
        _number(policy["bound_ratio"]["value"]),
        _interval(policy["bound_ratio"]),
        _number(against["value"]) if against else "",
        _interval(against) if against else "",
        f"{policy['machine_cpu_fraction']:.2f} / {policy['job_cpu_fraction']:.2f}",
    )


def _asked(row: Row) -> str:
    if row["at_least"] is not None:
        return f">= {row['at_least']:.2f}"
    return "" if row["at_most"] is None else f"<= {row['at_most']:.2f}"


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"


def _interval(row: Row) -> str:
    return "" if row["low"] is None else f"{row['low']:.3f}-{row['high']:.3f}"
