"""What Theorem 1 expects of regions, by hand and against replays of random chains."""

from __future__ import annotations

import pytest
import region_theorems as experiment

from byteprophet.optimize.serial_backward import SerialBackward

# Operations end at 10, 20 and 30; the link is free again at 14, 24 and 34.
EASY = SerialBackward((10, 20, 30), (4, 4, 4), 30)
# The link is far behind: it ends at 30, 50 and 70.
BUSY = SerialBackward((10, 20, 30), (20, 20, 20), 30)


def test_transfers_take_their_turns() -> None:
    assert EASY.synced_ns == (14, 24, 34)
    assert BUSY.synced_ns == (30, 50, 70)
    assert SerialBackward((), (), 30).done_ns == 30


@pytest.mark.parametrize(
    ("serial", "span", "saved", "sooner"),
    [
        (EASY, (0, 20), 5, 5),  # both at 15, through at 23; the last is ready at 25
        (EASY, (0, 20), 0, 0),  # both at 20, through at 28: in time for the last one
        (EASY, (10, 30), 1, -3),  # both at 29, through at 37
        (BUSY, (0, 20), 8, -2),  # the link waits until 12
        (BUSY, (0, 20), 12, 2),  # the link begins at 8
        (BUSY, (10, 30), 0, 0),  # it is busy until 30 anyway
        (BUSY, (10, 30), -1, -1),
        (EASY, (20, 25), 3, 3),  # nothing is complete by then
    ],
)
def test_how_much_sooner(
    serial: SerialBackward, span: tuple[int, int], saved: int, sooner: int
) -> None:
    assert serial.sooner_ns(*span, saved) == sooner


@pytest.fixture(scope="module")
def tallies() -> dict[str, experiment.Tally]:
    """Seeds are others than those that the experiment reports."""
    seeds = range(50_000, 50_080)
    return {
        **experiment.tally_chains(seeds, bare=False),
        **{
            name: each
            for name, each in experiment.tally_chains(seeds, bare=True).items()
            if "without gradients" in name
        },
    }


@pytest.mark.parametrize(
    "name",
    [
        "1, forward waits for all: held",
        "1, forward waits for all: otherwise",
        "1, forward waits by layer: held",
        "1, forward waits by layer: otherwise",
        "1, some operations without gradients, forward waits for all: held",
        "1, some operations without gradients, forward waits for all: otherwise",
        "3, repaired",
    ],
)
def test_what_is_expected_is_what_is_replayed(
    name: str, tallies: dict[str, experiment.Tally]
) -> None:
    assert tallies[name].held > 30
    assert not tallies[name].wrong, tallies[name].example


@pytest.mark.parametrize(
    "name",
    [
        "1, the paper's otherwise",
        "3, the paper's",
        "1, some operations without gradients, forward waits by layer: held",
    ],
)
def test_what_does_not_hold_is_wrong_somewhere(
    name: str, tallies: dict[str, experiment.Tally]
) -> None:
    assert tallies[name].example


def test_whole_jobs_gain_what_theorems_expect() -> None:
    """Nearly always: the link of a whole job is not quite one that buckets take turns on."""
    jobs = experiment.tally_jobs(range(50_000, 50_012))
    expected = [each for name, each in jobs.tallies.items() if "expected by" in name]
    assert sum(each.held for each in expected) > 20
    assert sum(each.wrong for each in expected) <= 0.1 * sum(each.held for each in expected)
    assert max(each.worst for each in expected) < 0.01
    assert sum(jobs.until_helps) <= sum(jobs.in_any_order)
