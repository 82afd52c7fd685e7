"""The conditions of dPRO's theorems, on replays of random graphs of exactly their form."""

from __future__ import annotations

import pytest
import theorems as experiment

from byteprophet.optimize import theorems


@pytest.fixture(scope="module")
def tallies() -> dict[tuple[str, str], experiment.Tally]:
    """Seeds are others than those that the experiment reports."""
    counted = experiment.tally([experiment.random_chain(seed) for seed in range(50_000, 50_120)])
    return {
        (wording.theorem, wording.wording): each
        for wording, each in zip(experiment.WORDINGS, counted, strict=True)
    }


@pytest.mark.parametrize(
    "wording",
    [
        ("1", "repaired"),
        ("1", "repaired, slacks"),
        ("1", "its otherwise"),
        ("2", "repaired"),
        ("2", "its otherwise"),
        ("3, operations", "repaired"),
        ("3, gradients", "repaired"),
    ],
)
def test_repaired_conditions_are_never_wrong(
    wording: tuple[str, str], tallies: dict[tuple[str, str], experiment.Tally]
) -> None:
    assert tallies[wording].held > 30
    assert not tallies[wording].wrong_about_q
    assert not tallies[wording].wrong_about_end


@pytest.mark.parametrize(
    "wording",
    [
        ("1", "paper, otherwise"),
        ("2", "paper"),
        ("2", "repaired, urgent first"),
        ("3, operations", "paper"),
        ("3, gradients", "paper"),
    ],
)
def test_what_was_repaired_is_wrong_somewhere(
    wording: tuple[str, str], tallies: dict[tuple[str, str], experiment.Tally]
) -> None:
    assert tallies[wording].example is not None


def test_an_idle_link_is_worth_more_than_a_message() -> None:
    """Operations end at 4 and 10; either message takes 1 + 2, and both 1 + 4 together."""
    gain_ns = theorems.tensor_fusion_gain_ns(
        synced_before_ns=0, ready_second_ns=10, synced_second_ns=13, sync_fused_ns=5
    )
    assert gain_ns == -2


def test_a_busy_link_is_worth_less() -> None:
    """As above, but the link was busy until 9: 9 + 3 + 3 apart, 10 + 5 together."""
    gain_ns = theorems.tensor_fusion_gain_ns(
        synced_before_ns=9, ready_second_ns=10, synced_second_ns=15, sync_fused_ns=5
    )
    assert gain_ns == 0


def test_later_computation_decides_with_its_slack() -> None:
    """Fusing delays q(n) by 2 and makes all later operations earlier by 1."""
    assert not theorems.fuses_operations(-2, 1)
    assert theorems.fuses_operations(-2, 1, link_slack_ns=2)
    assert not theorems.fuses_operations(1, -1)
    assert theorems.fuses_operations(1, -1, compute_slack_ns=1)
