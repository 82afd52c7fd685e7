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
    hits,
    ideal,
    line,
    place_of,
    resized,
    resources_of,
)

from byteprophet.bound import all_reduced_bytes
from byteprophet.errors import UserError
from byteprophet.job import Model, Parameter, Policy, Strategy
from byteprophet.job.strategy_file import Used, write_strategy
from byteprophet.job.times import Int64Array
from byteprophet.workload import Tensor, Workload, load, to_toml


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


def test_what_was_measured_otherwise_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = case_of(KNOWN[0])

    def place(*arguments: str, size_bytes: int = 24_000_000) -> Path:
        options = strategy_search._parse(["--runs", str(tmp_path), *arguments])
        workload = resized(load(cell["model"]), size_bytes)
        return place_of(cell, workload, resources_of(cell, 24_000_000, 10**9), options)

    first = place()
    assert first.parent == tmp_path / "strategy-search"
    assert place("--out", str(tmp_path / "other")) == first
    others = {place("--iterations", "6"), place(size_bytes=12_000_000)}
    with monkeypatch.context() as patched:
        patched.setattr(strategy_search, "code_version", lambda: "other")
        others.add(place())
    with monkeypatch.context() as patched:
        patched.setattr(strategy_search, "describe_machine", lambda: {"cores": 512})
        others.add(place())
    assert len(others - {first}) == 4


def test_a_case_goes_on_in_its_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs twice, and the time of the search is not that of reading its files."""
    ran: list[str] = []

    def runner(*_: Any) -> strategy_search.Runner:
        def run(files: Mapping[str, Path | None]) -> Iterator[tuple[str, Int64Array]]:
            for label in files:
                ran.append(label)
                yield label, np.array([10**9 + len(ran)] * 3, np.int64)

        return run

    monkeypatch.setattr(strategy_search, "paced_runner", runner)
    tensors = tuple(Tensor(f"t{n}", 4_000_000, 10**7, 2 * 10**7) for n in range(3))
    (tmp_path / "small.toml").write_text(to_toml(Workload("small", 8, tensors)))
    cell = case_of(f"{tmp_path / 'small.toml'}/1,1+1/1")
    short = ["--trials", "4", "--drawn", "4", "--rounds", "1", "--budget-s", "0.05"]
    options = strategy_search._parse(["--runs", str(tmp_path), *short])
    found = strategy_search.measure(cell, options)
    assert ran
    ran.clear()
    assert strategy_search.measure(cell, options) == found
    assert not ran
    # Builders ran first, and every later run took longer: one that the search tried is no hit.
    assert hits(found) == 0


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
    "routings_ns": [90, 100, 105, 200],
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
    assert hits(ROW) == 1  # one that is as fast as the best builder does not beat it
    assert hits(ROW, by_hand=True) == 3
    assert ideal(ROW) == 1.25
    assert correlation(ROW, "engine_ns") == pytest.approx(0.5)
    assert correlation(ROW, "learned_ns") == pytest.approx(1)
    text = line(ROW)
    assert "links 1,1+0.5, r = 1.5" in text
    assert "1.100 times as fast as the best builder, 1.200 times as the best hand-made one" in text
    assert "1 of 4 routings tried beat all builders, 3 the hand-made ones" in text


def test_every_goal_stands_beside_what_was_found() -> None:
    slow = {**ROW, "sides": {**ROW["sides"], "search": side("x", 110)}, "hand_bound_ns": 90}
    rows = {text[:60].strip(): text.split()[-2:] for text in goals([ROW, slow]).splitlines()}

    def found(beginning: str) -> list[str]:
        return next(value for what, value in rows.items() if what.startswith(beginning))

    assert found("cases") == ["1", "2"]
    assert found("least gain") == ["0.900", "0.99"]
    assert found("geometric mean over the best hand-made") == ["1.200", "1.2"]  # one case only
    assert found("trials of routings that beat the best builder") == ["25%", "80%"]
    assert found("trials of routings that beat the best hand-made") == ["75%", "-"]
    assert found("rank correlation of the engine, ") == ["0.50", "0.9"]


def test_a_search_that_tried_only_builders_beats_none() -> None:
    row = {**ROW, "routings_ns": []}
    assert "0 of 0 routings tried" in line(row)
    assert "no trial" in goals([row])


@pytest.mark.parametrize(
    "text", ["resnet50", "resnet50/1,1/1", "resnet50/+1/1", "resnet50/1,0+/1", "resnet50/1+/x"]
)
def test_what_is_no_case_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--cases"):
        strategy_search.main(["--cases", text])
