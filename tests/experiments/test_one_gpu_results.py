"""What was measured on one H100 can be read, and the costs that are made of it are those saved."""

from __future__ import annotations

from pathlib import Path

import one_gpu_costs
import pytest
from one_gpu import read_rows
from one_gpu_cases import CASES

from byteprophet.simulate.costs.table import read_table

RESULTS = Path(one_gpu_costs.__file__).parent / "results" / "gpu-h100"


def test_all_cases_were_measured() -> None:
    device, rows = read_rows(RESULTS / "one_gpu.json")
    assert "H100" in device
    assert [row.case for row in rows] == list(CASES)
    assert all(row.allocated_bytes > 1 << 30 and row.measured_ns > 10e6 for row in rows)


def test_costs_with_an_h200s_shapes_are_made_of_what_was_measured(tmp_path: Path) -> None:
    out = tmp_path / "made.json"
    given = [str(RESULTS / name) for name in ("costs.json", "one_gpu.json")]
    one_gpu_costs.main([*given, "--out", str(out)])
    made, saved, plain = (
        read_table(path) for path in (out, RESULTS / "costs-with-h200.json", RESULTS / "costs.json")
    )
    assert made.launch_ns == pytest.approx(saved.launch_ns, rel=0.02)
    assert made.products == saved.products == plain.products
    assert made.operators == saved.operators
    assert set(plain.operators) < set(saved.operators)
    assert made.attention == saved.attention
    assert made.convolutions == saved.convolutions
    assert {len(rows) > 0 for rows in (saved.attention, saved.unaligned)} == {True}
