"""Waits of a job with two transports end with the later one of both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from byteprophet.diagnose.gates import Gates
from byteprophet.diagnose.path import critical_path
from byteprophet.diagnose.recorded import Recorded
from byteprophet.diagnose.routed import NOT_ROUTED, Routed, read_routed
from byteprophet.job import Bucket, Model, Parameter, Policy, Strategy
from byteprophet.job.routes import MESH, SERVERS, Piece, Route
from byteprophet.job.strategy_file import Used, write_strategy
from byteprophet.timeline.tables import SPAN, SPANS, TRANSFERS, Kind

from ..timeline.made_up import rows_of
from .hand_made import CONFIG, MS, NUMBERS, at, ps_job, recorded, span

ROUTED = Routed({"w[0]": "w"}, {"w": frozenset({0}), "v": frozenset({1})})
BEGIN_MS = (95.0, 103.0)
"""When the ranks begin the all-gather of the piece of "w" that goes over the mesh."""


def job(gathered_ms: float) -> Recorded:
    """``ps_job``, whose tensor is the first piece of "w"; the second is gathered by then."""
    events = []
    for one in ps_job():
        if one.table is TRANSFERS:
            one = replace(one, names={0: "w[0]"})
        if one.table is SPANS:
            begin_ms = BEGIN_MS[one.origin.rank]
            rows = [span(n, Kind.COLLECTIVE, 2, begin_ms, gathered_ms) for n in NUMBERS]
            together = np.concatenate([one.rows, rows_of(SPAN, rows)])
            one = replace(one, rows=together, names={**one.names, 2: "all-gather 1.0"})
        events.append(one)
    return replace(recorded(events, CONFIG), routed=ROUTED)


def first_steps(run: Recorded) -> list[tuple[str, str, str]]:
    begin_ns = at(13, 0) + run.workers[0].ahead_ns
    return [
        (step.kind, step.name, step.where)
        for step in critical_path(run).steps
        if begin_ns < step.end_ns <= begin_ns + 26 * MS
    ]


def test_the_mesh_was_later() -> None:
    """It is done at 24.5, and the servers' answer has been there since 24."""
    run = job(124.5)
    assert first_steps(run)[-2:] == [
        ("collective", "all-gather 1.0", "all ranks"),  # since worker 1 began it
        ("other", "w", "worker 0"),
    ]


def test_servers_were_later() -> None:
    found = first_steps(job(110.0))
    assert found[-5:] == [
        ("to sum", "w[0]", "server 0"),
        ("sum", "w[0]", "server 0"),
        ("answer", "w[0]", "server 0"),
        ("pull", "w[0]", "worker 0 down"),
        ("other", "w", "worker 0"),
    ]


def test_a_wait_for_what_is_not_known_ends_with_the_later_one() -> None:
    gates = Gates(job(124.5))
    end_ns = at(13, 30) + job(124.5).workers[0].ahead_ns
    of_all = gates.of_wait(0, "something else", end_ns)
    assert of_all is not None
    assert of_all.span >= 0
    # Nothing of "v" has come: its bucket is another one.
    assert gates.of_wait(0, "v", end_ns) is None


@pytest.mark.parametrize("damaged", [False, True])
def test_what_a_run_directory_says(damaged: bool, tmp_path: Path) -> None:
    assert read_routed(tmp_path) is NOT_ROUTED
    routes = (
        Route("w", (Piece(400, SERVERS), Piece(400, MESH))),
        Route("v", (Piece(80, MESH),)),
    )
    used = Used(
        Model((Parameter("w", 800), Parameter("v", 80))),
        Strategy(
            "mixed",
            (Bucket(("w[1]",), 0, 2), Bucket(("v",), 1, 3)),
            partition_bytes=4096,
            routes=routes,
            mesh="allreduce",
        ),
        1,
        Policy("fifo", {}),
    )
    path = tmp_path / "strategy.json"
    write_strategy(path, used)
    if damaged:
        path.write_text(path.read_text()[:-20])
    assert read_routed(tmp_path) == (NOT_ROUTED if damaged else ROUTED)


def test_a_reader_is_told_whose_rates_are_shown() -> None:
    assert NOT_ROUTED.notes == []
    assert "those of pushes and pulls alone" in ROUTED.notes[0]
