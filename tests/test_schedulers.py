from __future__ import annotations

import pytest

from byteprophet import _core, schedulers
from byteprophet.errors import UserError


def test_stock_comes_before_the_cores_policies() -> None:
    assert schedulers.names == ("stock", *_core.policy_names())
    assert schedulers.DEFAULT in schedulers.names


@pytest.mark.parametrize("name", schedulers.names)
def test_without_overrides_the_defaults_hold(name: str) -> None:
    settings, partition_bytes = schedulers.resolve(name, {})
    assert settings["partition_bytes"] == partition_bytes > 0
    if name == "stock":
        assert settings == {"partition_bytes": 4096000}
    else:
        assert settings == _core.default_settings(name)


@pytest.mark.parametrize("name", schedulers.names)
def test_the_partition_size_can_be_given_either_way(name: str) -> None:
    by_setting = schedulers.resolve(name, {"partition_bytes": 65536})
    assert by_setting == schedulers.resolve(name, {}, 65536)
    assert by_setting == schedulers.resolve(name, {"partition_bytes": 65536}, 65536)
    assert by_setting[1] == by_setting[0]["partition_bytes"] == 65536


def test_a_partition_size_that_is_given_stays() -> None:
    assert schedulers.resolve("prophet", {})[0]["partition_max_bytes"] > 0
    assert schedulers.resolve("prophet", {}, 65536)[0]["partition_max_bytes"] == 0
    chosen = {"partition_bytes": 65536, "partition_max_bytes": 131072}
    assert schedulers.resolve("prophet", chosen)[0]["partition_max_bytes"] == 131072
    assert "partition_max_bytes" not in schedulers.resolve("p3", {}, 65536)[0]


def test_overrides_leave_the_other_defaults() -> None:
    settings, _ = schedulers.resolve("p3", {"outstanding_messages": 3})
    assert settings == {**_core.default_settings("p3"), "outstanding_messages": 3}


@pytest.mark.parametrize(
    ("name", "overrides", "partition_bytes", "says"),
    [
        ("best", {}, None, "scheduler 'best': choose one of stock, "),
        ("p3", {"window": 1}, None, "has no setting 'window'; it accepts "),
        ("p3", {"outstanding_messages": 0}, None, "outstanding_messages=0"),
        ("p3", {"outstanding_messages": 2**80}, None, "at most 64 bits"),
        ("stock", {"window": 1}, None, "stock has only partition_bytes"),
        ("stock", {}, -1, "partition_bytes=-1"),
        ("stock", {"partition_bytes": 2**30 + 1}, None, "partition_bytes=1073741825"),
        ("p3", {"partition_bytes": 4096}, 8192, "give one of them"),
    ],
)
def test_what_is_wrong_is_named(
    name: str, overrides: dict[str, int], partition_bytes: int | None, says: str
) -> None:
    with pytest.raises(UserError) as raised:
        schedulers.resolve(name, overrides, partition_bytes)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_core_reads_settings_as_they_are_written() -> None:
    settings = schedulers.resolve("prophet", {})[0]
    assert _core.parse_settings(schedulers.settings_text(settings)) == settings
    assert _core.parse_settings(schedulers.settings_text({})) == {}
