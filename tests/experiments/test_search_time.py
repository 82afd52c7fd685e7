"""When a search of search_time.py counts as ended, and what is said of it; no search is made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import search_time
from search_time import LIMIT_S, SERVERS, Sampler, columns_of

from byteprophet.engine import paced_job
from byteprophet.errors import JobFailed, UserError
from byteprophet.job import Job
from byteprophet.optimize.search import Candidate, Found
from byteprophet.report.console import table_console
from byteprophet.workload import Tensor, Workload

MS = 1_000_000


class Clock:
    """A clock of a machine that is as busy as ``share`` says; replays take no time."""

    def __init__(self, share: float) -> None:
        self._share, self._now_s = share, 0.0

    def advance(self, wall_s: float) -> None:
        self._now_s += wall_s

    def monotonic(self) -> float:
        return self._now_s

    def process_time(self) -> float:
        return self._share * self._now_s


@pytest.fixture
def job() -> Job:
    tensors = tuple(Tensor(f"t{n}", 4_000, MS, MS) for n in range(2))
    workload = Workload("small", 1, tensors)
    return paced_job(workload, "fifo", workers=2, servers=1, bandwidth_bps=10**9)


def columns(
    monkeypatch: pytest.MonkeyPatch, job: Job, needs_s: float, share: float = 1.0
) -> list[search_time.Column]:
    """The columns if every search needs so much wall time, or what its budget allows."""
    clock = Clock(share)
    monkeypatch.setattr(search_time, "time", clock)

    def search(
        job: Job, _passes: Any, *, budget_s: float, stages: Any, evaluator: Sampler | None = None
    ) -> Found:
        if evaluator is not None:
            evaluator(job)
        clock.advance(min(needs_s, budget_s))
        candidate = Candidate(job, 1)
        return Found(candidate, candidate, (), 5)

    monkeypatch.setattr(search_time, "search", search)
    return columns_of(job, SERVERS, 60.0, 1)


def test_searches_end_by_the_wall_clock_and_take_processor_time(
    monkeypatch: pytest.MonkeyPatch, job: Job
) -> None:
    """On a busy machine, a count stopped after 60 s took 40 s of processor time."""
    *counted, last = columns(monkeypatch, job, 70.0, share=2 / 3)
    assert [(each.seconds, each.ended) for each in counted] == [(pytest.approx(40), False)] * 3
    assert last.seconds == pytest.approx(70 * 2 / 3)
    assert all(each.ended for each in columns(monkeypatch, job, 50.0))


@pytest.mark.parametrize(
    ("needs_s", "seconds", "ended", "held"),
    [(20.0, 20.0, True, True), (45.0, 45.0, True, False), (1000.0, 10 * LIMIT_S, False, False)],
)
def test_the_last_search_is_not_stopped_at_the_limit_that_it_is_held_to(
    monkeypatch: pytest.MonkeyPatch,
    job: Job,
    needs_s: float,
    seconds: float,
    ended: bool,
    held: bool,
) -> None:
    made = columns(monkeypatch, job, needs_s)
    assert (made[-1].seconds, made[-1].ended) == (pytest.approx(seconds), ended)
    table = search_time.new_table()
    said = search_time.add_rows(table, "small, servers", job, made)
    assert f"at most 30 s: {'holds' if held else 'does not hold'}, " in said
    assert "within 1% of the best: holds" in said
    console = table_console()
    with console.capture() as captured:
        console.print(table)
    (line,) = (text for text in captured.get().splitlines() if "+ symmetry" in text)
    assert (">5" in line.split()) == (not ended)
    assert line.split()[-2] == ("1.0" if ended else "-")
    longer = [replace(made[0], seconds=1e6), made[-1]]
    claim = "100 times less than without: " + ("holds" if ended else "does not hold")
    assert claim in search_time.add_rows(table, "small, servers", job, longer)


def test_rows_are_printed_when_they_are_known(
    monkeypatch: pytest.MonkeyPatch, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of two networks fails, after a search of minutes."""
    made = columns(monkeypatch, job, 20.0)
    searched: list[str] = []

    def columns_of(_job: Job, transport: str, *_: object) -> list[search_time.Column]:
        searched.append(transport)
        if len(searched) == 2:
            raise JobFailed("stopped")
        return made

    monkeypatch.setattr(search_time, "columns_of", columns_of)
    monkeypatch.setattr(search_time, "MAKE", {SERVERS: lambda _: job})
    with pytest.raises(JobFailed):
        search_time.main(["--networks", "vgg19,gpt2", "--transports", SERVERS])
    assert "vgg19, servers: at most 30 s: holds" in capsys.readouterr().out
    searched.clear()
    for options in (["--networks", "vgg19,nothing"], ["--transports", f"{SERVERS},nothing"]):
        with pytest.raises(UserError, match="nothing"):
            search_time.main(["--transports", SERVERS, *options])
    assert not searched, "wrong names are refused before the first search"
