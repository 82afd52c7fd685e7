"""Tuning during the run: ranks in step over a network in one process, and a real job."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from byteprophet import _core
from byteprophet.launcher import JobSpec, run_job
from byteprophet.torch.retuning.tuning import Tuning
from byteprophet.tune.journal import Journal, read_journal
from byteprophet.tune.request import TRIALS, Request
from byteprophet.tune.space import candidates

WORKER = Path(__file__).with_name("tuning_worker.py")
WINDOW = 5
DEFAULTS = _core.default_settings("p3")
NAMES = ("partition_bytes", "outstanding_messages")


def duration_ns(settings: dict[str, int]) -> int:
    """Shortest for 256 KiB and 8 messages."""
    far = abs(settings["partition_bytes"].bit_length() - 19) + abs(
        settings["outstanding_messages"].bit_length() - 4
    )
    return 1_000_000 * (10 + far)


BEST = min(candidates("p3", NAMES, DEFAULTS), key=duration_ns)


class Rank:
    """A rank that trains: each step takes as long as the settings that it was given make it."""

    def __init__(self, network: Any, rank: int, folder: Path) -> None:
        self.member = network.rank(rank)
        self.now_ns = 0
        self.tuning = Tuning(
            Request("p3", DEFAULTS, WINDOW * TRIALS, NAMES),
            self.member,
            Journal(folder if rank == 0 else None),
            timeout_s=20.0,
            clock_ns=lambda: self.now_ns,
        )
        self.tuning.declare()

    def train(self, steps: int, owner: str = "first", agreed: bool = True) -> None:
        for _ in range(steps):
            settings = {**DEFAULTS, **(self.member.reconfigured or [{}])[-1]}
            self.now_ns += duration_ns(settings) * (1 + self.member.rank)  # rank 0's count
            self.tuning.after_step(owner, agreed)


Together = Callable[[Callable[[Rank], None]], None]


@pytest.fixture
def ranks(make_network: Callable[..., Any], tmp_path: Path) -> list[Rank]:
    network = make_network(size=3, late_s=0.002)
    return [Rank(network, rank, tmp_path) for rank in range(3)]


@pytest.fixture
def together(ranks: list[Rank]) -> Together:
    """Run something on all ranks, a thread each."""

    def run(what: Callable[[Rank], None]) -> None:
        failures: list[BaseException] = []

        def guarded(rank: Rank) -> None:
            try:
                what(rank)
            except BaseException as error:  # noqa: BLE001 (raised below)
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert not any(thread.is_alive() for thread in threads)
        assert failures == []

    return run


def test_all_ranks_end_with_the_best_settings(
    ranks: list[Rank], together: Together, tmp_path: Path
) -> None:
    together(lambda rank: rank.train(3, agreed=False))
    together(lambda rank: rank.train(WINDOW * TRIALS + 2))
    applied = ranks[0].tuning.applied
    assert [rank.tuning.applied for rank in ranks] == [applied] * 3
    assert [rank.member.reconfigured for rank in ranks] == [[s for _, s in applied]] * 3
    # After the agreed step that begins each window comes the one that takes over.
    assert [iteration for iteration, _ in applied] == [4 + WINDOW * n for n in range(TRIALS + 1)]
    assert applied[-1][1] == BEST
    *trials, last = read_journal(tmp_path)
    assert last["chosen"] == BEST
    assert last["iteration_ns"] == duration_ns(BEST)
    assert [entry["iteration_ns"] for entry in trials] == [
        duration_ns(settings) for _, settings in applied[:-1]
    ]
    assert all(len(entry["window_ns"]) == WINDOW for entry in trials)


def test_nothing_is_sent_any_more_after_the_end(
    ranks: list[Rank], together: Together, make_network: Any
) -> None:
    together(lambda rank: rank.train(WINDOW * TRIALS + 2))
    sent = len(ranks[0].member._network.submitted)
    together(lambda rank: rank.train(3 * WINDOW))
    assert len(ranks[0].member._network.submitted) == sent == 3 * (TRIALS + 1)


def test_only_the_first_optimizer_counts(ranks: list[Rank], together: Together) -> None:
    def train(rank: Rank) -> None:
        for _ in range(WINDOW + 2):
            rank.train(1)
            rank.train(3, owner="second")

    together(train)
    assert [iteration for iteration, _ in ranks[0].tuning.applied] == [1, WINDOW + 1]


def test_a_new_optimizer_goes_on_with_the_search(ranks: list[Rank], together: Together) -> None:
    together(lambda rank: rank.train(WINDOW + 1))
    for rank in ranks:
        rank.tuning.declare()
    together(lambda rank: rank.train(WINDOW * (TRIALS - 1) + 1, owner="second"))
    assert ranks[0].tuning.settled
    assert ranks[0].member.reconfigured[-1] == BEST


@pytest.mark.parametrize(
    ("steps", "repeats"),
    [
        (1, False),  # the first choice is under way, nobody has it yet
        (2, True),
        (WINDOW, True),
        (WINDOW + 1, False),  # the second one is
        (WINDOW * TRIALS + 2, True),
    ],
)
def test_goes_on_after_a_suspension(
    ranks: list[Rank], together: Together, steps: int, repeats: bool
) -> None:
    """Wherever it was: a trial that was cut short is made again, the choice is said again."""
    together(lambda rank: rank.train(steps))
    before = [settings for _, settings in ranks[0].tuning.applied]

    def resume(rank: Rank) -> None:
        rank.tuning.drain()
        rank.tuning.restart()
        rank.train(1, agreed=False)
        rank.train(WINDOW * TRIALS + 2)

    together(resume)
    applied = ranks[0].tuning.applied
    assert [rank.tuning.applied for rank in ranks] == [applied] * 3
    assert (before[-1:] == [applied[len(before)][1]]) == repeats
    assert applied[-1][1] == BEST
    assert len(applied) - len(before) <= TRIALS + 1


def test_a_late_message_is_an_error_that_says_what_was_waited_for(
    make_network: Callable[..., Any], tmp_path: Path
) -> None:
    rank = Rank(make_network(size=2), 1, tmp_path)  # rank 0 never comes
    rank.tuning._timeout_s = 0.2
    with pytest.raises(RuntimeError, match=r"waited 0\.2 s for the scheduler's settings of"):
        rank.train(2)


@pytest.mark.job
@pytest.mark.timeout(300)
def test_a_job_ends_tuned_and_exact(tmp_path: Path) -> None:
    """One of the workers is slower; each computes by itself what must come out."""
    spec = JobSpec(
        command=(sys.executable, str(WORKER)),
        run_directory=tmp_path / "run",
        directory=tmp_path,
        servers=2,
        scheduler="bytescheduler",
        environment={"BYTEPROPHET_TIMEOUT_S": "100", "BYTEPROPHET_TUNE": "100"},
        timeout_s=200.0,
    )
    result = run_job(spec, None)
    assert result.failed is None
    one, other = (json.loads((tmp_path / f"applied-{rank}.json").read_text()) for rank in (0, 1))
    assert one == other
    assert len(one) == TRIALS + 1
    *trials, last = read_journal(tmp_path / "run")
    assert [[entry["iteration"], entry["settings"]] for entry in trials] == one[:-1]
    assert [last["iteration"], last["chosen"]] == one[-1]
    assert len({entry["settings"]["partition_bytes"] for entry in trials}) > 3
    assert [entry["phase"] for entry in trials].count("random") == 10
