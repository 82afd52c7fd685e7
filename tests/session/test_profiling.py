"""The profile that a job starts from, and a controller's plans."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from byteprophet._plugin import Plugin
from byteprophet.session.profiling import StartingProfile

from ..control.conftest import MEGABYTE, profile

TWO = profile(MEGABYTE, MEGABYTE)  # of tensors t0 and t1


@pytest.fixture
def library() -> MagicMock:
    """A plug-in that accepts every plan."""
    found = MagicMock()
    found.byteprophet_stage_plan.return_value = 0
    found.byteprophet_iteration.return_value = 0
    return found


def staged(library: MagicMock) -> list[tuple[int, int]]:
    """For which iteration each plan is, and of how many tensors."""
    calls = library.byteprophet_stage_plan.call_args_list
    return [(call.args[0], call.args[3]) for call in calls]


def test_a_profile_is_given_until_all_its_tensors_are_known(library: MagicMock) -> None:
    starting = StartingProfile(TWO, Plugin(library))
    assert starting.give({0: "t0"})
    library.byteprophet_iteration.return_value = 1
    assert not starting.give({0: "t0", 1: "t1"})
    assert staged(library) == [(1, 1), (2, 2)]


def test_a_profile_of_another_job_has_no_effect_and_is_told(
    library: MagicMock, capsys: pytest.CaptureFixture[str]
) -> None:
    starting = StartingProfile(TWO, Plugin(library))
    assert [starting.give({0: "other"}) for _ in range(3)] == [True, True, False]
    assert staged(library) == []
    assert "none of its 2 tensors is this job's" in capsys.readouterr().err


def test_a_profile_does_not_take_the_place_of_a_plan(library: MagicMock) -> None:
    """As after ``resume``: the controller's last plan is there before the first iteration."""
    plugin = Plugin(library)
    plugin.stage_plan(9, {})  # of an earlier start
    starting = StartingProfile(TWO, plugin)
    assert starting.give({0: "t0"})
    plugin.stage_plan(20, {})
    assert not starting.give({0: "t0", 1: "t1"})
    assert staged(library) == [(9, 0), (1, 1), (20, 0)]
