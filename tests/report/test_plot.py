"""Pictures: what is drawn, read back from the axes, and that files come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from byteprophet.report.plot import draw_iterations, draw_rates, save

SCHEDULERS = ("stock", "prophet", "p3")


def row(workload: str, scheduler: str, bandwidth_bps: int | None, median_ns: int) -> dict[str, Any]:
    return {
        "workload": workload,
        "scheduler": scheduler,
        "bandwidth_bps": bandwidth_bps,
        "workers": 2,
        "servers": 1,
        "paced": workload != "digits",
        "iteration_ns": {
            "median": median_ns,
            "p10": median_ns * 9 // 10,
            "p90": median_ns * 6 // 5,
        },
        "samples_per_s": 64e9 / median_ns,
        "bound_ns": 50_000_000,
        "bound_ratio": median_ns / 50e6,
    }


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """As read from a file: two workloads, three schedulers, two links."""
    made = [
        row(workload, scheduler, bandwidth_bps, 100_000_000 + 10_000_000 * place)
        for workload in ("resnet50", "digits")
        for place, scheduler in enumerate(SCHEDULERS)
        for bandwidth_bps in (2_000_000_000, 500_000_000)
    ]
    loaded: list[dict[str, Any]] = json.loads(json.dumps(made))
    return loaded


def test_rates(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    figure = draw_rates(rows)
    assert len(figure.axes) == 2
    for axes, kind in zip(figure.axes, ("paced", "real training"), strict=True):
        assert kind in axes.get_title(loc="left")
        lines = {str(line.get_label()): line for line in axes.get_lines()}
        assert list(lines) == ["stock", "p3", "prophet", "upper bound"]
        assert list(lines["stock"].get_xdata()) == [0.5, 2.0]
        assert list(lines["stock"].get_ydata()) == pytest.approx([640.0, 640.0])
        assert list(lines["upper bound"].get_ydata()) == pytest.approx([1280.0, 1280.0])
    save(figure, tmp_path / "rates.png")
    picture = (tmp_path / "rates.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def test_rounds_are_one_point_and_unlimited_links_have_none(rows: list[dict[str, Any]]) -> None:
    rounds = [
        row("resnet50", "prophet", 10**9, ns) for ns in (100_000_000, 200_000_000, 128_000_000)
    ]
    figure = draw_rates([*rounds, row("resnet50", "prophet", None, 1)])
    (line, _) = figure.axes[0].get_lines()
    assert list(line.get_xdata()) == [1.0]
    assert list(line.get_ydata()) == pytest.approx([500.0])


def test_a_scheduler_that_is_not_finished_has_the_points_that_are(
    rows: list[dict[str, Any]],
) -> None:
    some = [r for r in rows if (r["scheduler"], r["bandwidth_bps"]) != ("p3", 500_000_000)]
    lines = {str(line.get_label()): line for line in draw_rates(some).axes[0].get_lines()}
    assert list(lines["p3"].get_xdata()) == [2.0]
    assert list(lines["stock"].get_xdata()) == [0.5, 2.0]


def test_iterations(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    one_link = [r for r in rows if r["workload"] == "digits" and r["bandwidth_bps"] == 500_000_000]
    (axes,) = draw_iterations(one_link).axes
    assert [patch.get_width() for patch in axes.patches] == pytest.approx([100.0, 110.0, 120.0])
    assert [label.get_text() for label in axes.get_yticklabels()] == list(SCHEDULERS)
    assert "50 ms" in axes.get_legend().get_texts()[0].get_text()
    for unbounded in one_link:
        unbounded["bound_ns"] = None
    figure = draw_iterations(one_link)
    assert figure.axes[0].get_legend() is None
    save(figure, tmp_path / "iterations.png")
    assert (tmp_path / "iterations.png").stat().st_size > 10_000
