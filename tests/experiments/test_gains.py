"""Cells of experiments/gains.py, its figures, and that it goes on where it stopped."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gains
import gains_cell
import gains_cells
import gains_opponents
import numpy as np
import pytest
from gains_cell import Effort
from gains_cells import CELLS, DDP, Cell
from gains_opponents import opponents_of
from gains_tables import REGIONS, over_best_opponent, summary

from byteprophet.bench.grid_jobs import code_version
from byteprophet.errors import JobFailed, UserError
from byteprophet.launcher import JobSpec
from byteprophet.network import payload_bps

from ..namespaces import why_not_permitted

FOLDER = Path(__file__).parents[2] / "experiments" / "models"


def test_every_model_is_in_one_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    families = importlib.import_module("families")
    sets = gains_cells.SETS
    known = [*sets[gains_cells.TUNE], *sets[gains_cells.REPORT]]
    assert sorted(known) == sorted(families.KNOWN)
    assert sorted(sets[gains_cells.ACCEPT]) == sorted(families.UNSEEN)
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    for models in sets.values():
        of_set = [cell for cell in CELLS if cell.model in models]
        assert {cell.runtime for cell in of_set} == {*gains_cells.RUNTIMES}


@pytest.mark.parametrize(("runtime", "ranks", "share"), [("byteps", 3, 1), ("ddp", 4, 1.5)])
def test_links_give_the_ratio(runtime: str, ranks: int, share: float) -> None:
    cell = Cell("vgg", runtime, ranks, 0.5)
    rate_bps = payload_bps(cell.bandwidth_bps(40_000_000, 200_000_000))
    assert rate_bps is not None
    assert share * 40e6 * 8 / rate_bps == pytest.approx(0.5 * 0.2, rel=0.01)


def test_opponents_try_as_much_as_the_optimizer(tmp_path: Path) -> None:
    for cell in CELLS:
        opponents = opponents_of(cell, 10**9, 20, tmp_path, 3)
        assert len(opponents) == 4
        for name, jobs in opponents.items():
            assert len(jobs) == {"dear-planned": 1, "ddp": 4}.get(name, 3)
            for job in jobs.values():
                assert job.workers == cell.ranks
                assert job.all_reduce == (name in ("dear-planned", "ddp"))
                if cell.runtime == DDP:  # the script stays as it is
                    assert job.command[job.command.index("--sync") + 1] == "ddp"


def test_opponents_are_tuned_where_that_may_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow ones try one setting; only those near the fastest are compared; runs are kept."""
    times_ns = {"a 1": 100, "a 2": 90, "a 2 --compile": 97, "b 1": 114, "b 2": 93, "c 1": 116}
    jobs = {
        name: {
            f"{name} {number}": JobSpec((name, f"{number}"), tmp_path)
            for number in (1, 2)
            if f"{name} {number}" in times_ns
        }
        for name in "abc"
    }
    ran: list[str] = []

    class Measured:
        iteration_ns = np.zeros(1)

    def run_job(spec: JobSpec) -> Any:
        ran.append(" ".join(spec.command))
        Measured.iteration_ns = np.array([times_ns.get(ran[-1], 200)])
        return SimpleNamespace(check=lambda: None)

    monkeypatch.setattr(gains_opponents, "run_job", run_job)
    monkeypatch.setattr(gains_opponents, "Run", lambda _: None)
    monkeypatch.setattr(gains_opponents, "measure_run", lambda _: Measured)
    monkeypatch.setattr(gains_opponents, "warmup_of", lambda _: 0)
    for _ in range(2):
        found = gains_opponents.tuned(jobs, tmp_path, tmp_path / "kept.json", lambda _: None)
        assert {name: what for name, (what, _) in found.items()} == {"a": "a 2", "b": "b 2"}
    assert "c 1" in ran
    assert "c 1 --compile" not in ran
    assert len(ran) == len(set(ran)) == 7


EFFORT = Effort(iterations=30, rounds=3, trials=3, budget_s=300.0)


def a_result(cell: Cell, **changes: Any) -> dict[str, Any]:
    return {
        "cell": cell.name,
        "code": code_version(),
        "effort": asdict(EFFORT),
        "set": cell.kind,
        "baseline_ns": 120,
        "optimised_ns": 100,
        "predicted_gain": 1.25,
        "interval": [1.1, 1.3],
        "measured_gain": 1.2,
        "bound_ns": 90,
        "applied": True,
        "held": True,
        "regions": {REGIONS[0]: 110},
        "trials": [{"family": "ddp", "replayed_gain": 1.3, "measured_gain": 1.2}],
        "opponents": {
            "slow": {"tried": "a", "iteration_ns": 140},
            "fast": {"tried": "b", "iteration_ns": 90},
        },
        **changes,
    }


def test_figures() -> None:
    first, second = CELLS[:2]
    results = [
        a_result(first),
        a_result(second, predicted_gain=1.0, measured_gain=1.1, held=False, opponents={}),
    ]
    assert over_best_opponent(results[0]) == 0.9
    assert over_best_opponent(a_result(first, baseline_ns=80)) == 0.8
    assert over_best_opponent(results[1]) is None
    found = summary(results)
    assert found["mean error"] == pytest.approx(7.5)
    assert found["worst error"] == pytest.approx(10)
    assert found["mean error in trials"] == pytest.approx(10)
    assert found["coverage"] == 0.5
    assert found["gain over the default"] == pytest.approx((1.2 * 1.1) ** 0.5)
    assert found["gain over the best opponent"] == pytest.approx(0.9)


@pytest.mark.skipif(bool(why_not_permitted()), reason="limited links are checked for")
def test_finished_cells_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def measure_cell(cell: Cell, *_: object) -> dict[str, Any]:
        ran.append(cell.name)
        return a_result(cell)

    monkeypatch.setattr(gains, "measure_cell", measure_cell)
    options = ["--out", str(tmp_path)]
    gains.main(["--cells", "vgg-ddp*", *options])
    gains.main(["--cells", "vgg-*", *options])
    wanted = [cell.name for cell in CELLS if cell.model == "vgg"]
    assert sorted(ran) == sorted(wanted)
    (ddp,) = (cell for cell in CELLS if cell.model == "vgg" and cell.runtime == DDP)
    assert json.loads((tmp_path / ddp.name / "result.json").read_text()) == a_result(ddp)
    with pytest.raises(UserError, match=r"result\.json: was measured with another rounds: use "):
        gains.main(["--cells", "vgg-*", "--rounds", "5", *options])
    capsys.readouterr()
    gains.main(["--report", *options])
    assert len(ran) == 3
    said = capsys.readouterr().out
    assert all(name in said for name in wanted)
    assert "fast, b" in said
    assert "1.100" in said  # over no regions
    assert "1.111" in said  # over the bound


@pytest.mark.skipif(bool(why_not_permitted()), reason="limited links are checked for")
def test_a_cell_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure_cell(cell: Cell, *_: object) -> dict[str, Any]:
        if cell.runtime == DDP:
            raise ZeroDivisionError("nothing took any time")
        return a_result(cell)

    monkeypatch.setattr(gains, "measure_cell", measure_cell)
    with pytest.raises(JobFailed, match="1 cell\\(s\\) failed: vgg-ddp"):
        gains.main(["--cells", "vgg-*", "--out", str(tmp_path)])
    assert len(list(tmp_path.glob("*/result.json"))) == 2
    gains.main(["--cells", "llama-*", "--minutes", "-1", "--out", str(tmp_path)])
    assert len(list(tmp_path.glob("*/result.json"))) == 2
    said = capsys.readouterr().err
    assert "ZeroDivisionError: nothing took any time" in said
    assert "-1 minutes are over" in said


@pytest.mark.skipif(bool(why_not_permitted()), reason="limited links are checked for")
def test_a_cell_that_was_begun_with_another_effort_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stopped in its first step. What it had kept was later taken for that of any effort."""

    def stopped(*_: object) -> tuple[int, int]:
        raise JobFailed("stopped")

    monkeypatch.setattr(gains_cell, "computed", stopped)
    options = ["--cells", "vgg-ddp*,vgg-byteps*", "--out", str(tmp_path)]
    for _ in range(2):
        with pytest.raises(JobFailed, match="2 cell"):
            gains.main([*options, "--quick"])
    with pytest.raises(UserError, match="begun with another iterations and rounds and trials and"):
        gains.main(options)


def test_wrong_cells_are_refused() -> None:
    with pytest.raises(UserError, match="--cells 'nothing': matches no cell"):
        gains.main(["--cells", "tune,nothing"])
