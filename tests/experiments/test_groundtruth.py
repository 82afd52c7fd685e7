"""Scores against public measurements, on rows that are made here."""

from __future__ import annotations

import gzip
from pathlib import Path

import groundtruth
import pytest
from groundtruth_allreduce import predict, rows, with_constants
from groundtruth_scores import Score, half_of

from byteprophet.errors import UserError


def test_says_that_measurements_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are no measurements"):
        groundtruth.main([str(tmp_path / "nowhere")])
    with pytest.raises(UserError, match=r"ground_truth_multi.csv: cannot be read"):
        groundtruth.main([str(tmp_path), "--set", "vtrain"])


def test_figures_of_errors() -> None:
    score = Score("rows", [0.01, -0.04, 0.10, -0.20], [0.5], [0.0])
    assert score.mape == pytest.approx(0.0875)
    assert score.median == pytest.approx(0.07)
    assert (score.within, score.worst) == (0.5, -0.20)


def test_halves_depend_on_the_row_alone() -> None:
    halves = [half_of(f"row {at}") for at in range(1000)]
    assert halves == [half_of(f"row {at}") for at in range(1000)]
    assert 400 < sum(halves) < 600


def test_constants_are_found_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables that the model itself makes with known constants: no error, and the constants."""
    made = {"a100": ("dgx-a100", (0.7, 3.0, 2.0, 0.3)), "v100": ("dgx-1v", (0.8, 4.0, 3.0, 0.1))}
    sizes = [(2 << 20) * at for at in range(1, 120, 7)]
    for gpu, (cluster, constants) in made.items():
        folder = tmp_path / "vtrain" / gpu
        folder.mkdir(parents=True)
        for gpus in range(2, 9):
            lines = [f"{size},0,float,1,0,0,0" for size in sizes]
            path = folder / f"AR_GPU{gpus}_1M_1024M_LUT.csv.gz"
            path.write_bytes(gzip.compress("\n".join(["header", *lines]).encode()))
        times = iter(predict(rows(tmp_path, gpu), with_constants(cluster, constants)))
        for gpus in range(2, 9):
            lines = [f"{size},0,float,{next(times):.0f},0,0,0" for size in sizes]
            path = folder / f"AR_GPU{gpus}_1M_1024M_LUT.csv.gz"
            path.write_bytes(gzip.compress("\n".join(["header", *lines]).encode()))
    groundtruth.main([str(tmp_path), "--set", "allreduce"])
    printed = capsys.readouterr().out
    assert "a100: efficiency 0.700, step 3000 ns, base 20000 ns, own step 0.30" in printed
    assert "v100: efficiency 0.800, step 4000 ns, base 30000 ns, own step 0.10" in printed
