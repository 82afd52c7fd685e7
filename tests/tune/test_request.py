"""What may be asked for, and what is left open to choose."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from byteprophet import _core
from byteprophet.errors import UserError
from byteprophet.tune.request import TRIALS, parse_request
from byteprophet.tune.space import SPACES, candidates, free_settings

DEFAULTS: Mapping[str, int] = _core.default_settings("bytescheduler")


@pytest.mark.parametrize("scheduler", SPACES)
def test_the_core_accepts_every_candidate(scheduler: str) -> None:
    for settings in candidates(scheduler, free_settings(scheduler), {}):
        assert _core.Policy(scheduler, settings).settings == settings


def test_credit_is_at_least_a_partition_and_at_most_what_can_be_in_flight() -> None:
    found = candidates("bytescheduler", ["credit_bytes"], {"partition_bytes": 100_000})
    sizes = [settings["credit_bytes"] for settings in found]
    assert min(sizes) == 131072
    assert max(sizes) == 25165824  # the last one below 256 partitions
    assert all("partition_bytes" not in settings for settings in found)


@pytest.mark.parametrize("text", ["", "0", " 0 "])
def test_nothing_is_asked_for(text: str) -> None:
    assert parse_request(text, "fifo", {}) is None


def test_all_that_can_be_tuned_or_what_is_named() -> None:
    request = parse_request("300", "bytescheduler", DEFAULTS)
    assert request is not None
    assert request.free == ("partition_bytes", "credit_bytes")
    assert request.window == 300 // TRIALS
    named = parse_request("100:credit_bytes", "bytescheduler", DEFAULTS)
    assert named is not None
    assert {tuple(settings) for settings in named.candidates()} == {("credit_bytes",)}
    assert parse_request(str(named), "bytescheduler", DEFAULTS) == named


@pytest.mark.parametrize(
    ("text", "scheduler", "message"),
    [
        ("many", "bytescheduler", "BYTEPROPHET_TUNE=many: use ITERATIONS"),
        ("-5", "bytescheduler", "BYTEPROPHET_TUNE=-5: use ITERATIONS"),
        ("9" * 5000, "bytescheduler", "BYTEPROPHET_TUNE=9999"),
        ("99", "bytescheduler", "tuning in 99 iterations: it takes at least 100"),
        ("300", "prophet", "'prophet' has nothing to tune; these have: p3, bytescheduler"),
        ("300:window", "p3", "'p3' cannot tune window; it can tune partition_bytes, outst"),
        ("300:credit_bytes", "stock", "'stock' cannot tune credit_bytes; it can tune no setting"),
    ],
)
def test_errors_say_what_to_do(text: str, scheduler: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_request(text, scheduler, DEFAULTS)
    assert message in str(raised.value)


def test_what_does_not_fit_the_given_settings() -> None:
    with pytest.raises(UserError, match="no credit_bytes fits"):
        candidates("bytescheduler", ["credit_bytes"], {"partition_bytes": 1 << 30})
    with pytest.raises(UserError, match="nothing is left to tune"):
        free_settings("p3", ["partition_bytes", "outstanding_messages"])
