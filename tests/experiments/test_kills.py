"""The experiment that kills roles: a real case, and how cases are drawn."""

from __future__ import annotations

import random
from pathlib import Path

import kills
import pytest

from byteprophet.errors import UserError

from ..namespaces import why_not_permitted

_REASON = why_not_permitted()


@pytest.mark.job
@pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
def test_a_worker_that_is_cut_off(tmp_path: Path) -> None:
    case = kills.Case("prophet", servers=1, victim="worker-0", way="cable", moment_s=0.3)
    outcome = kills.run_case(case, tmp_path, 10**9, dead_after_s=4)
    assert outcome.wrong == ()
    assert outcome.exit_status == 1
    assert outcome.line == "worker-0 (10.87.0.3) has been silent for 4 s"


def test_the_seed_decides() -> None:
    first, second = random.Random(4), random.Random(4)
    cases = [kills.draw_case(first, ("stock", "p3")) for _ in range(200)]
    assert cases == [kills.draw_case(second, ("stock", "p3")) for _ in range(200)]
    assert {(case.victim, case.way) for case in cases} == {
        (victim, way)
        for victim in ("scheduler", "worker-0", "worker-1", "server-0", "server-1")
        for way in ("SIGKILL", "SIGSTOP", "cable")
    }


@pytest.mark.parametrize(
    "arguments", [["--times", "0"], ["--schedulers", "nobody"], ["--bandwidth", "fast"]]
)
def test_wrong_usage(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError):
        kills.main([*arguments, "--runs", str(tmp_path)])
    assert not list(tmp_path.iterdir())
