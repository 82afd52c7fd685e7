"""Settings of the runtimes beside BytePS: completed, or refused."""

from __future__ import annotations

import pytest

from byteprophet.bench import Case
from byteprophet.bench.case import all_reduce_case
from byteprophet.bench.runtimes import BYTEPS, RUNTIMES
from byteprophet.errors import UserError
from byteprophet.paced.collective_settings import SYNCS, resolve

COLLECTIVE = [name for name in RUNTIMES if name != BYTEPS]


@pytest.mark.parametrize("runtime", COLLECTIVE)
def test_what_is_given_replaces_the_default_and_nothing_else(runtime: str) -> None:
    defaults = resolve(runtime, {})
    for name in defaults:
        changed = resolve(runtime, {name: 1})
        assert changed == {**defaults, name: 1}


@pytest.mark.parametrize("runtime", COLLECTIVE)
def test_unknown_settings_are_refused(runtime: str) -> None:
    with pytest.raises(UserError, match=f"setting 'speed': {runtime} has only "):
        resolve(runtime, {"speed": 1})


@pytest.mark.parametrize(
    ("runtime", "settings", "says"),
    [
        ("fsdp2", {"unit_layers": 0}, "unit_layers=0: must be from 1 to"),
        ("fsdp2", {"asynchronous": 2}, "asynchronous=2: must be from 0 to 1"),
        ("wfbp", {"message_cost_ns": -1}, "message_cost_ns=-1: must be from 0 to"),
        ("dear", {"tune": 3}, "tune=3: must be from 0 to 1"),
    ],
)
def test_values_out_of_range_are_refused(runtime: str, settings: dict[str, int], says: str) -> None:
    with pytest.raises(UserError, match=says):
        resolve(runtime, settings)


@pytest.mark.parametrize("runtime", SYNCS)
def test_a_group_is_said_in_one_way(runtime: str) -> None:
    with pytest.raises(UserError, match="bucket_bytes and tune: they exclude each other"):
        resolve(runtime, {"bucket_bytes": 9, "tune": 1})


def test_the_link_is_filled_in_where_it_is_known_and_not_given() -> None:
    """Payload is 0.9564 of a limited link's rate (docs/architecture.md)."""
    case = all_reduce_case(Case("resnet50", "prophet", 10**9), "wfbp", {})
    settings = case.collective_settings
    assert settings is not None
    assert settings["payload_bps"] == pytest.approx(0.9564e9, rel=1e-4)
    given = all_reduce_case(case, "wfbp", {"payload_bps": 5}).collective_settings
    assert given == {**settings, "payload_bps": 5}
    unlimited = all_reduce_case(Case("resnet50", "prophet", None), "wfbp", {})
    assert unlimited.collective_settings == {**settings, "payload_bps": 0}
    assert Case("resnet50", "prophet", 10**9).collective_settings is None
