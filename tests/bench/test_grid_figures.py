"""Records in, report out: the arithmetic of every target on records written by hand.

No interval is printed where the records carry no noise; those are tested in test_spread.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from byteprophet.bench.grid_figures import Figures
from byteprophet.bench.grid_phases import PROPHET
from byteprophet.bench.grid_store import Record
from byteprophet.report.grid import notes

BOUND_NS = 100
FOUR = "bytescheduler[credit_bytes=8388608,partition_bytes=4194304]"
ONE = "bytescheduler[credit_bytes=2097152,partition_bytes=1048576]"
HALF = "p3[partition_bytes=524288]"


def job(
    cell: str,
    variant: str,
    iteration_ns: int,
    *,
    phase: str = "base",
    number: int = 1,
    cpu: float = 0.5,
    sha: str = "same",
    code: str = "c",
) -> Record:
    scheduler = variant.split("[")[0].removesuffix("+tuner")
    return {
        "phase": phase,
        "cell": cell,
        "variant": variant,
        "round": number,
        "code": code,
        "scheduler": scheduler,
        "iteration_ns": [iteration_ns] * 3,
        "bound_ns": BOUND_NS,
        "machine_cpu_fraction": cpu,
        "saturated_fraction": 0.0,
        "job_cpu_fraction": cpu,
        "parameters_sha256": sha,
    }


def targets(cells: list[str], records: list[Record]) -> str:
    """The targets that were measured, as text: figure, met, number of entries, where."""
    lines = []
    for row in Figures(cells, records).targets():
        if row["value"] is not None:
            met = {True: "yes", False: "no", None: "-"}[row["met"]]
            where = row["where"] or "-"
            lines.append(f"{row['what'].strip()} | {row['value']} {met} {row['over']} {where}")
    return "\n".join(lines)


def test_the_base_phase() -> None:
    records = [
        job("a", PROPHET, 102),
        job("b", PROPHET, 104),
        job("c", PROPHET, 107),
        job("d", PROPHET, 200, cpu=0.9),
        job("a", "stock", 204),
        job("b", "stock", 104),
        job("c", "stock", 150),
        job("d", "stock", 150),
    ]
    assert (
        targets(["a", "b", "c", "d"], records)
        == """\
prophet over the bound, median | 1.04 no 3 -
prophet over the bound, worst | 1.07 no 3 c
the same where the processor is the limit, worst | 2.0 - 1 d
stock, best cell | 2.0 yes 4 a
stock, worst cell | 0.75 no 4 d"""
    )


def test_a_ratio_is_taken_within_a_round() -> None:
    """In the second round the machine was half as fast: that must not show."""
    records = [
        job("a", PROPHET, 100, number=1),
        job("a", "stock", 150, number=1),
        job("a", PROPHET, 200, number=2),
        job("a", "stock", 300, number=2),
        job("a", "stock", 999, number=3),  # prophet's job is still to come
    ]
    assert "stock, worst cell | 1.5 yes" in targets(["a"], records)


def test_jobs_of_other_code_are_not_compared() -> None:
    records = [job("a", PROPHET, 100, code="new"), job("a", "stock", 200, code="old")]
    assert "stock" not in targets(["a"], records)
    assert "stock, best cell | 2.0" in targets(
        ["a"], [*records, job("a", "stock", 200, code="new")]
    )


def test_tuned_for_the_cell_the_best_of_those_confirmed_counts() -> None:
    records = [
        job("a", PROPHET, 100, phase="tuned"),
        job("a", FOUR, 130, phase="tuned"),
        job("a", ONE, 98, phase="tuned"),
        job("a", HALF, 120, phase="tuned"),
        job("b", PROPHET, 100, phase="tuned"),
        job("b", ONE, 105, phase="tuned"),
        job("b", ONE, 1, phase="single"),  # never beside prophet
    ]
    assert (
        targets(["a", "b"], records)
        == f"each baseline tuned for the cell, worst | 0.98 no 3 a, {ONE}"
    )


def test_the_best_single_setting_is_one_that_was_run_in_all_cells() -> None:
    records = [
        job("a", PROPHET, 100),
        job("b", PROPHET, 100),
        job("a", "bytescheduler", 130),
        job("b", "bytescheduler", 130),
        job("a", PROPHET, 200, phase="single"),
        job("b", PROPHET, 200, phase="single"),
        job("a", ONE, 180, phase="single"),
        job("b", ONE, 290, phase="single"),
        job("a", FOUR, 300, phase="single"),
        job("b", FOUR, 300, phase="single"),
        job("a", HALF, 10, phase="single"),  # in one cell only
    ]
    found = targets(["a", "b"], records)
    mean = round((0.9 * 1.45) ** 0.5, 4)
    assert f"best single setting, geometric mean | {mean} yes 1 {ONE}" in found
    assert f"baselines at 4 MB x 2, geometric mean | 1.5 yes 1 {FOUR}" in found


def test_tuning_is_counted_by_all_iterations_not_by_their_median() -> None:
    tuning = job("a", "bytescheduler+tuner", 100, phase="tuning")
    tuning["iteration_ns"] = [100, 100, 100, 200]
    records = [tuning, job("a", PROPHET, 100, phase="tuning")]
    (line,) = [line for line in targets(["a"], records).split("\n") if "first 300" in line]
    assert "| 1.25 yes 1" in line
    (cell,) = Figures(["a"], records).cells()
    assert [policy["over_prophet"]["value"] for policy in cell["policies"]] == [1.25, 1.0]


def test_paper_settings_on_reduce() -> None:
    records = [
        job("a", PROPHET, 100),
        job("a", "bytescheduler-reduce", 125),
        job("b", PROPHET, 100),
        job("b", "bytescheduler-reduce", 131),
    ]
    assert "bytescheduler-reduce, best cell | 1.31 yes 2 b" in targets(["a", "b"], records)


def test_cells_keep_the_grids_order_and_their_policies_apart() -> None:
    records = [
        job("b", PROPHET, 110),
        job("a", "stock", 150),
        job("a", PROPHET, 120, phase="tuning"),
        job("a", PROPHET, 105),
    ]
    cells = Figures(["a", "never", "b"], records).cells()
    assert [cell["cell"] for cell in cells] == ["a", "b"]
    assert [
        (policy["variant"], policy["phases"], policy["bound_ratio"]["value"])
        for policy in cells[0]["policies"]
    ] == [("stock", ["base"], 1.5), (PROPHET, ["tuning"], 1.2), (PROPHET, ["base"], 1.05)]
    assert cells[1]["policies"][0]["over_prophet"]["value"] == 1


@pytest.mark.parametrize(("phase", "equal"), [("base", False), ("tuned", False), ("tuning", True)])
def test_different_parameters_are_seen(phase: str, equal: bool) -> None:
    """Jobs of the phase "tuning" are longer, and so end with others."""
    records = [job("a", PROPHET, 100), job("a", PROPHET, 100, phase=phase, number=2, sha="other")]
    (cell,) = Figures(["a"], records).cells()
    assert cell["parameters_equal"] is equal


def report_of(records: list[Record], **fields: Any) -> dict[str, Any]:
    return {
        "cells_in_grid": 1,
        "code": ["now"],
        "code_now": "now",
        "failed": 0,
        "machines": [],
        "cells": Figures(["a"], records).cells(),
        **fields,
    }


def test_notes() -> None:
    quiet = job("a", PROPHET, 100)
    assert notes(report_of([quiet])) == []
    busy = {**quiet, "machine_cpu_fraction": 0.9}
    found = notes(
        report_of(
            [busy, job("a", "stock", 100, sha="other")],
            cells_in_grid=3,
            code=["old", "now"],
            failed=2,
            machines=[{"kernel": "6.1"}, {"kernel": "6.2"}],
        )
    )
    assert found == [
        "1 of 3 cells have been measured",
        "measured with other code: old, now; now now",
        "measured on 2 machines, or with other kernels or torch: jobs are compared with those of "
        "the same one only",
        "2 jobs failed: see jobs.jsonl",
        "other programs took up to 40% of the processor meanwhile: "
        "these figures are not to be relied on",
        "a: parameters differ between policies",
    ]
