"""The coverage of intervals, on rows that are made here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import groundtruth_intervals
import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.execute.simulate import simulate_program
from byteprophet.simulate.models.load import load_model
from byteprophet.simulate.tree.one_line import parse_strategy


@dataclass(frozen=True)
class Row:
    program: Program
    measured_ns: float


def test_counts_what_the_interval_holds() -> None:
    cluster = find_cluster("dgx-a100")
    strategy = parse_strategy("tp=8 pp=2 micro_batches=2", 16)
    program = compile_program(load_model("gpt3-175b", 1, None), strategy)
    right = Row(program, float(simulate_program(program, cluster).iteration_ns))
    rows = [replace(right, measured_ns=factor * right.measured_ns) for factor in (0.5, 1, 1.05, 2)]
    seen = groundtruth_intervals.look(rows, cluster)
    assert [one.holds for one in seen] == [False, True, True, False]
    assert all(-0.3 < one.low < 0 < one.high < 0.5 for one in seen)


def test_says_that_measurements_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are no measurements"):
        groundtruth_intervals.main(["--data", str(tmp_path / "nowhere")])
