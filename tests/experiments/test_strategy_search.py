"""Cases of the search for strategies, and what is made of their times; no job runs here."""

from __future__ import annotations

from typing import Any

import pytest
import strategy_search
from strategy_search import CASES, case_of, correlation, gain, is_hit, line, resources_of, summary

from byteprophet.bound import all_reduced_bytes
from byteprophet.errors import UserError
from byteprophet.workload import load


@pytest.mark.parametrize("text", CASES)
def test_links_are_as_fast_as_the_case_says(text: str) -> None:
    cell = case_of(text)
    compute_ns = 10**9
    found = resources_of(cell, compute_ns)
    assert len(found.workers) == len(cell["workers"])
    assert len(found.servers) == len(cell["servers"])
    full_bps = max(host.link.up_bps / part
                   for host, part in zip(found.workers, cell["workers"], strict=True))  # fmt: skip
    moved = all_reduced_bytes(load(cell["model"]).size_bytes, len(cell["workers"]))
    assert moved * 8e9 / full_bps == pytest.approx(cell["ratio"] * compute_ns, rel=1e-3)
    for host, part in zip(found.servers, cell["servers"], strict=True):
        assert host.link.down_bps == pytest.approx(part * full_bps, rel=1e-3)


def side(strategy: str, *ratios: float) -> dict[str, Any]:
    return {
        "strategy": strategy,
        "engine_ns": 90,
        "ratios": list(ratios),
        "times_ns": [round(100 * ratio) for ratio in ratios],
    }


ROW: dict[str, Any] = {
    "model": "m",
    "workers": [1.0, 1.0],
    "servers": [0.5],
    "ratio": 1.5,
    "bound_ns": 80,
    "search_s": 3.0,
    "replays": 500,
    "sides": {
        "search": side("x=0.5", 0.9, 0.9),
        "engine alone": side("x=0.6", 0.95, 0.95),
        "sampler + trials": side("random 3", 0.91, 0.91),
        "random + limits": side("limited 1", 1.0, 1.0),
    },
    "builders": [
        {**side("mixed", 0.99, 0.99), "by_hand": False, "final": True},
        {**side("ps", 1.08, 1.08), "by_hand": True, "final": True},
        # It was fast once, and did not run again.
        {**side("ps-one", 0.5), "by_hand": True, "final": False},
    ],
    "held_out": [
        {"engine_ns": 1.0, "learned_ns": 1.0, "ratio": 1.0},
        {"engine_ns": 3.0, "learned_ns": 2.0, "ratio": 2.0},
        {"engine_ns": 2.0, "learned_ns": 3.0, "ratio": 3.0},
    ],
}


def test_gains_are_over_the_best_builders_that_ran_in_the_final_rounds() -> None:
    assert gain(ROW, by_hand=False) == pytest.approx(0.99 / 0.9)
    assert gain(ROW, by_hand=True) == pytest.approx(1.08 / 0.9)
    assert [name for name in ROW["sides"] if is_hit(ROW, name)] == ["search", "sampler + trials"]
    assert correlation(ROW, "engine_ns") == pytest.approx(1 / 3)
    assert correlation(ROW, "learned_ns") == 1
    text = line(ROW)
    assert "links 1,1+0.5, r = 1.5" in text
    assert "1.100 times as fast as the best builder, 1.200 times as the best hand-made one" in text
    assert "hits: search, sampler + trials" in text
    assert "search 1 of 1" in summary([ROW])
    slow = {**ROW, "sides": {**ROW["sides"], "search": side("x", 1.1)}}
    assert "search 1 of 2" in summary([ROW, slow])


@pytest.mark.parametrize(
    "text", ["", "resnet50", "resnet50/1,1/1", "resnet50/+1/1", "resnet50/1,0+/1", "resnet50/1+/x"]
)
def test_what_is_no_case_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--cases"):
        strategy_search.main(["--cases", text])
