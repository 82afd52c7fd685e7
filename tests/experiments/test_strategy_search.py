"""Cases of the search for strategies, and what is made of their times; no job runs here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strategy_search
from strategy_search import (
    KNOWN,
    Shared,
    case_of,
    correlation,
    gain,
    generated,
    goals,
    hit_rate,
    ideal,
    line,
    resized,
    resources_of,
)

from byteprophet.bound import all_reduced_bytes
from byteprophet.errors import UserError
from byteprophet.job import Model, Parameter, Policy, Strategy
from byteprophet.job.strategy_file import Used, write_strategy
from byteprophet.job.times import Int64Array
from byteprophet.workload import load


@pytest.mark.parametrize("text", [*KNOWN, *generated(1)])
def test_links_are_as_fast_as_the_case_says(text: str) -> None:
    cell = case_of(text)
    workload = resized(load(cell["model"]), 24_000_000)
    found = resources_of(cell, workload.size_bytes, 10**9)
    assert len(found.workers) == len(cell["workers"])
    assert len(found.servers) == len(cell["servers"])
    full_bps = max(host.link.up_bps / part
                   for host, part in zip(found.workers, cell["workers"], strict=True))  # fmt: skip
    moved = all_reduced_bytes(24_000_000, len(cell["workers"]))
    assert moved * 8e9 / full_bps == pytest.approx(cell["ratio"] * 10**9, rel=1e-3)
    for host, part in zip(found.servers, cell["servers"], strict=True):
        assert host.link.down_bps == pytest.approx(part * full_bps, rel=1e-3)


def test_generated_cases_follow_from_their_seed() -> None:
    assert generated(1) == generated(1)
    assert not set(generated(1)) & set(generated(10_000))
    assert len({text.rsplit("/", 2)[1] for text in generated(1)}) == len(generated(1))


def test_a_strategy_is_measured_once_for_all_who_ask(tmp_path: Path) -> None:
    ran: list[str] = []

    def runner(files: Mapping[str, Path | None]) -> Iterator[tuple[str, Int64Array]]:
        for label in files:
            ran.append(label)
            yield label, np.array([len(ran), 100], np.int64)

    path = tmp_path / "strategy.json"
    model = Model((Parameter("w", 8),))
    write_strategy(path, Used(model, Strategy("byteps", partition_bytes=4096), 0, Policy("fifo")))

    def times(asked: strategy_search.Runner, label: str) -> list[int]:
        ((_, found),) = asked({label: path})
        return [int(each) for each in found]

    shared = Shared(runner, tmp_path / "measured.json")
    one, other = shared.asked(), shared.asked()
    assert times(one, "a") == times(other, "b") == [1, 100]
    assert times(one, "a") == [2, 100]  # it asks for the second time
    again = Shared(runner, tmp_path / "measured.json").asked()
    assert [times(again, "c"), times(again, "c")] == [[1, 100], [2, 100]]
    assert ran == ["a", "a"]
    for _ in range(2):  # the baseline runs once
        assert [label for label, _ in again({"baseline": None})] == ["baseline"]
    assert ran == ["a", "a", "baseline"]


def side(strategy: str, *times_ns: int) -> dict[str, Any]:
    return {"strategy": strategy, "engine_ns": 90, "times_ns": list(times_ns)}


ROW: dict[str, Any] = {
    "model": "m",
    "workers": [1.0, 1.0],
    "servers": [0.5],
    "ratio": 1.5,
    "bound_ns": 80,
    "hand_bound_ns": 100,
    "search_s": 3.0,
    "replays": 500,
    "trials_ns": [90, 100, 105, 200],
    "sides": {
        "search": side("x=0.5", 90, 90),
        "engine alone": side("x=0.6", 95, 95),
        "sampler + trials": side("random 3", 110, 110),
        "random + limits": side("limited 1", 100, 100),
    },
    "builders": [
        {**side("mixed", 99, 99), "once_ns": 100, "by_hand": False, "final": True},
        {**side("ps", 108, 108), "once_ns": 110, "by_hand": True, "final": True},
        # It did not run in the final rounds.
        {**side("ps-one", 150), "once_ns": 150, "by_hand": True, "final": False},
    ],
    "held_out": [
        {"engine_ns": 1.0, "learned_ns": 1.0, "ns": 1},
        {"engine_ns": 3.0, "learned_ns": 2.0, "ns": 2},
        {"engine_ns": 2.0, "learned_ns": 3.0, "ns": 3},
    ],
}


def test_figures_of_a_case() -> None:
    assert gain(ROW) == pytest.approx(99 / 90)
    assert gain(ROW, by_hand=True) == pytest.approx(108 / 90)
    assert gain(ROW, "sampler + trials") == pytest.approx(99 / 110)
    assert hit_rate(ROW) == 0.5
    assert hit_rate(ROW, by_hand=True) == 0.75
    assert ideal(ROW) == 1.25
    assert correlation(ROW, "engine_ns") == pytest.approx(0.5)
    assert correlation(ROW, "learned_ns") == pytest.approx(1)
    text = line(ROW)
    assert "links 1,1+0.5, r = 1.5" in text
    assert "1.100 times as fast as the best builder, 1.200 times as the best hand-made one" in text


def test_every_goal_stands_beside_what_was_found() -> None:
    slow = {**ROW, "sides": {**ROW["sides"], "search": side("x", 110)}, "hand_bound_ns": 90}
    rows = {text[:60].strip(): text.split()[-2:] for text in goals([ROW, slow]).splitlines()}

    def found(beginning: str) -> list[str]:
        return next(value for what, value in rows.items() if what.startswith(beginning))

    assert found("cases") == ["1", "2"]
    assert found("least gain") == ["0.900", "0.99"]
    assert found("geometric mean over the best hand-made") == ["1.200", "1.2"]  # one case only
    assert found("trials that beat the best builder") == ["50%", "80%"]
    assert found("trials that beat the best hand-made") == ["75%", "-"]
    assert found("rank correlation of the engine, ") == ["0.50", "0.9"]


@pytest.mark.parametrize(
    "text", ["resnet50", "resnet50/1,1/1", "resnet50/+1/1", "resnet50/1,0+/1", "resnet50/1+/x"]
)
def test_what_is_no_case_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--cases"):
        strategy_search.main(["--cases", text])
