"""The bandwidth experiment: a real cell, and going on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path

import bandwidth
import pytest

from byteprophet.errors import UserError

from ..namespaces import why_not_permitted
from ..thorough import THOROUGH

ONE_CELL = ["--quick", "--workloads", "digits", "--schedulers", "p3", "--bandwidth", "2gbit"]


@THOROUGH  # tests/bench/test_grid_run.py stops a grid
@pytest.mark.job
@pytest.mark.skipif(why_not_permitted() is not None, reason="needs network namespaces")
def test_goes_on_where_it_stopped(tmp_path: Path) -> None:
    out, runs = tmp_path / "results", tmp_path / "runs"
    arguments = [*ONE_CELL, "--out", str(out), "--runs", str(runs)]
    bandwidth.main(arguments)
    (row,) = json.loads((out / "bandwidth.json").read_text())["results"]
    assert (row["scheduler"], row["bandwidth_bps"], row["round"]) == ("p3", 2_000_000_000, 1)
    assert row["bound_ratio"] > 0  # less than 1 where a burst carries this small job
    assert "/" not in row["run"]

    (out / "bandwidth.png").unlink()
    bandwidth.main(arguments)
    assert len(list(runs.iterdir())) == 1
    assert (out / "bandwidth.png").stat().st_size > 10_000

    with pytest.raises(UserError, match="was measured with"):
        bandwidth.main([argument for argument in arguments if argument != "--quick"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--workloads", "bert-base"], "choose from resnet50, digits"),
        (["--schedulers", "stock,nobody"], "'nobody'"),
        (["--bandwidth", "1gbit,unlimited"], "cannot be drawn|not a bandwidth"),
        (["--rounds", "0"], "at least 1"),
    ],
)
def test_wrong_usage(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=complaint):
        bandwidth.main([*arguments, "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bandwidth.json").write_text('{"schema": 1, "results": []}')
    with pytest.raises(UserError, match="not a results file"):
        bandwidth.main([*ONE_CELL, "--out", str(tmp_path)])
