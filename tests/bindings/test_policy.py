"""The policies through byteprophet._core. Their rules are tested in C++ (tests/prophet)."""

from __future__ import annotations

import re

import pytest

from byteprophet import _core


def drain(policy: _core.Policy, now_ns: int = 0) -> list[int]:
    """Keys sent at ``now_ns``, in order, until the policy has nothing more to send."""
    keys = []
    while (decision := policy.next(now_ns))[0] == "send":
        keys.append(decision[1])
    return keys


def test_version_is_a_version() -> None:
    assert re.fullmatch(r"\d+\.\d+.*", _core.__version__)


def test_names_and_defaults() -> None:
    assert _core.policy_names() == [
        "fifo",
        "p3",
        "bytescheduler",
        "bytescheduler-reduce",
        "prophet-paper",
        "prophet",
    ]
    assert _core.default_settings("fifo") == {"partition_bytes": 1048576}
    assert _core.default_settings("p3") == {"partition_bytes": 196608, "outstanding_messages": 8}
    assert _core.default_settings("bytescheduler") == {
        "partition_bytes": 262144,
        "credit_bytes": 1048576,
    }
    assert _core.default_settings("prophet")["bandwidth_bps"] == 0


@pytest.mark.parametrize("name", _core.policy_names())
def test_every_policy_sends_everything_once(name: str) -> None:
    policy = _core.Policy(name, _core.default_settings(name))
    assert policy.name == name
    keys = [tensor << 16 | part for tensor in range(20) for part in range(3)]
    for key in reversed(keys):
        policy.on_ready(
            key=key, server=key % 3, priority=-1 - (key >> 16), size_bytes=1 << 20, now_ns=key
        )
    assert policy.pending == len(keys)
    sent: list[int] = []
    now_ns = 0
    while policy.pending:
        batch = drain(policy, now_ns)
        assert batch, "nothing is in flight, and the policy idles"
        sent += batch
        now_ns += 1_000_000
        for key in batch:
            policy.on_acked(key, now_ns)
    policy.on_iteration(now_ns)
    assert sorted(sent) == sorted(keys)


def test_decisions() -> None:
    policy = _core.Policy("p3", {"outstanding_messages": 1})
    assert policy.next(0) == ("idle",)
    policy.on_ready(7 << 16, 2, -3, 1000, 0)
    policy.on_ready(8 << 16, 2, -1, 500, 0)
    assert policy.next(0) == ("send", 8 << 16, 2, -1, 500)
    assert policy.next(0) == ("idle",)
    policy.on_acked(99, 5)  # never sent: ignored
    assert policy.next(5) == ("idle",)
    policy.on_acked(8 << 16, 5)
    assert policy.next(5) == ("send", 7 << 16, 2, -3, 1000)


def test_a_profile_known_beforehand_narrows_prophets_window() -> None:
    settings = {
        "window_floor_bytes": 100,
        "window_max_bytes": 10_000,
        "bandwidth_bps": 8_000_000_000,
    }
    sent = {}
    for known in (False, True):
        policy = _core.Policy("prophet", settings)
        if known:
            policy.set_ready_times([(1, -1, 500, 0)])  # one byte per ns: 500 bytes until then
        for part in range(20):
            policy.on_ready(5 << 16 | part, 0, -5, 250, 0)
        sent[known] = len(drain(policy))
    assert sent == {False: 20, True: 2}


def test_profiles_are_checked_and_ignored_where_nothing_is_predicted() -> None:
    with pytest.raises(ValueError, match="ready time of tensor 4"):
        _core.Policy("prophet").set_ready_times([(4, -1, -500, 0)])
    _core.Policy("fifo").set_ready_times([(4, -1, 500, 0)])


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("lifo", {}, "no scheduler is called 'lifo'; there are fifo, p3, bytescheduler, byte"),
        ("fifo", {"window": 1}, "no setting 'window'; it accepts partition_bytes"),
        ("p3", {"outstanding_messages": 0}, "outstanding_messages=0 is out of range"),
        ("bytescheduler", {"credit_bytes": -5}, "credit_bytes=-5 is out of range"),
        ("prophet", {"window_floor_bytes": 9, "window_max_bytes": 8}, "must not be above"),
    ],
)
def test_refusals_are_one_line(name: str, settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        _core.Policy(name, settings)
    assert "\n" not in str(caught.value)


def test_default_settings_of_an_unknown_policy() -> None:
    with pytest.raises(ValueError, match="no scheduler is called"):
        _core.default_settings("lifo")


def test_numbers_outside_their_type() -> None:
    policy = _core.Policy("fifo")
    with pytest.raises(TypeError):
        policy.on_ready(-1, 0, 0, 1, 0)
    with pytest.raises(TypeError):
        policy.on_ready(1, 0, 1 << 31, 1, 0)
    assert policy.pending == 0
