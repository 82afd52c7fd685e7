"""The map of the engine: cells, going on where it stopped, and what the picture says of a cell."""

from __future__ import annotations

import json
from pathlib import Path

import map as engine_map
import map_plot
import pytest

from byteprophet import schedulers
from byteprophet.errors import UserError
from byteprophet.workload import Tensor, Workload, to_toml

MS = 1_000_000
TENSORS = (Tensor("urgent", 400_000, 20 * MS, 10 * MS), Tensor("bulk", 4_000_000, 20 * MS, 40 * MS))


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    path = tmp_path / "small.toml"
    path.write_text(to_toml(Workload("small", 8, TENSORS)))
    return ["--quick", "--workloads", str(path), "--links", "1", "--out", str(tmp_path / "results")]


def test_goes_on_where_it_stopped(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_map.main(small)
    file = tmp_path / "results" / "map.json"
    content = json.loads(file.read_text())
    rows = content["results"]
    assert len(rows) == 4
    for row in rows:
        assert set(row["schedulers"]) == set(schedulers.names)
        for result in row["schedulers"].values():
            assert row["bound_ns"] <= result["iteration_ns"] <= result["default_ns"]

    file.write_text(json.dumps({**content, "results": rows[:2]}))
    run: list[engine_map.Cell] = []
    real = engine_map.run_cell
    monkeypatch.setattr(engine_map, "run_cell", lambda cell: run.append(cell) or real(cell))
    engine_map.main(small)
    assert len(run) == 2
    assert json.loads(file.read_text())["results"] == rows
    assert (tmp_path / "results" / "map.png").stat().st_size > 10_000


def test_who_wins() -> None:
    def row(ours: int, p3: int, fifo: int) -> dict[str, object]:
        return {
            "schedulers": {
                "prophet": {"default_ns": ours, "iteration_ns": ours // 2},
                "p3": {"default_ns": 2 * p3, "iteration_ns": p3},
                "fifo": {"default_ns": fifo, "iteration_ns": fifo},
            }
        }

    assert map_plot.winner(row(1000, 1100, 1200)) == "prophet"
    assert map_plot.winner(row(1000, 900, 800)) == "fifo"
    assert map_plot.winner(row(1000, 1003, 2000)) == "level"
    assert map_plot.advantage(row(1000, 1100, 1200)) == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--links", "0.5,zero"], "must be numbers"),
        (["--links", "0"], "must be numbers"),
        (["--workloads", "nobody"], "neither built in"),
    ],
)
def test_wrong_usage(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=complaint):
        engine_map.main([*arguments, "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text('{"rows": []}')
    with pytest.raises(UserError, match="not a results file"):
        engine_map.main(["--quick", "--out", str(tmp_path)])
