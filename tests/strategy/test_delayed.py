"""Strategies that delay averages: made on a user's word, shown, compared, explained, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.allreduce.strategies import best_strategy, timing_of
from byteprophet.allreduce.timing import Timing
from byteprophet.bound import bound_ns
from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.job import Job, Strategy
from byteprophet.job.strategy import Delay
from byteprophet.job.strategy_file import Used, write_strategy
from byteprophet.optimize.recorded import used_by
from byteprophet.replay.all_reduce import change, replay_job
from byteprophet.replay.under import under
from byteprophet.replay.what_if import Changes
from byteprophet.strategy.builders import BUILDERS, build
from byteprophet.strategy.delayed import delayed
from byteprophet.strategy.ways import differences, facts, ways

from .jobs import mesh_job, served_job

RATE_BPS = 400_000_000
BUILDERS_OF_RANKS = ("allreduce", "dear", "dear-planned", "owners")


def mesh(builder: str, *wishes: str) -> tuple[Job, Used]:
    recorded = mesh_job([RATE_BPS] * 3)
    job = delayed(build(builder, recorded), wishes)
    return job, used_by(job, recorded)


@pytest.mark.parametrize("builder", BUILDERS_OF_RANKS)
def test_a_user_s_word_delays_averages_and_no_builder_does(builder: str) -> None:
    plain, _ = mesh(builder)
    assert plain.strategy.staleness == ()
    job, used = mesh(builder, "layer.*=1", "large=2")
    wanted = (Delay("layer.0", 1), Delay("large", 2), Delay("layer.1", 1))
    assert job.strategy.staleness == wanted
    assert under(plain, used, "FILE").strategy == job.strategy
    assert not any(
        bucket.sharded and set(bucket.parameters) & {"large", "layer.0", "layer.1"}
        for bucket in job.strategy.buckets
    )


@pytest.mark.parametrize("name", ["in", "large"])
def test_the_others_are_planned_for_the_whole_computation(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if what is delayed comes first: forward then needs the others later."""
    planned: list[Timing] = []

    def plan(timing: Timing, runtime: str) -> Strategy:
        planned.append(timing)
        return best_strategy(timing, runtime)

    monkeypatch.setattr("byteprophet.strategy.delayed.best_strategy", plan)
    mesh("dear-planned", f"{name}=1")
    (timing,) = planned
    assert timing.compute_ns == timing_of(mesh_job([RATE_BPS] * 3)).compute_ns
    assert timing.lead_ns == (5_000_000 if name == "in" else 0)


def test_an_explanation_tells_what_a_delay_gains() -> None:
    plain, _ = mesh("allreduce")
    late, _ = mesh("allreduce", "*=1")
    times_ns = [int(replay_job(job).iterations_ns[-1]) for job in (plain, late)]
    assert times_ns[1] < times_ns[0]
    assert times_ns[1] >= bound_ns(late)
    assert bound_ns(late) < bound_ns(plain)


def test_what_if_keeps_the_delays() -> None:
    late, _ = mesh("dear", "large=1")
    for changes in (Changes(bandwidth_bps=RATE_BPS // 2), Changes(runtime="allreduce")):
        changed = change(late, changes)
        assert changed.strategy.staleness == (Delay("large", 1),)
        assert [b.parameters for b in changed.strategy.buckets if "large" in b.parameters] == [
            ("large",)
        ]


def test_delays_are_shown_and_compared() -> None:
    _, plain = mesh("dear-planned")
    _, late = mesh("dear-planned", "large=2")
    assert facts(late)["staleness"] == "1 of 6 parameters"
    assert "staleness" not in facts(plain)
    assert ways(late)["large"].endswith("updated by all, averages delayed by 2 steps")
    found = {each.what: each for each in differences(plain, late)}
    assert found["staleness"].first == ""
    assert "averages delayed by 2 steps" in found["large"].second


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ("large", "--staleness 'large': must be NAME=STEPS or PATTERN=STEPS"),
        ("large=x", "--staleness 'large=x': must be NAME=STEPS or PATTERN=STEPS"),
        ("=1", "--staleness '=1': must be NAME=STEPS or PATTERN=STEPS"),
        ("large=7", "--staleness: 'large' must be an integer from 0 to 2"),
        ("huge=1", "--staleness: 'huge' matches no parameter"),
        (
            "large=" + "1" * 5000,
            f"--staleness 'large={'1' * 93}: must be NAME=STEPS or PATTERN=STEPS",
        ),
    ],
)
def test_wishes_that_are_none_are_refused(wish: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        mesh("dear", wish)
    assert str(refused.value) == said


def test_a_wish_may_be_said_twice_but_not_changed() -> None:
    assert mesh("dear", "large=1", "large=1")[0].strategy.staleness == (Delay("large", 1),)
    with pytest.raises(UserError, match=r"--staleness '\*=2': 1 was given before"):
        mesh("dear", "*=1", "*=2")


def test_servers_delay_no_averages() -> None:
    job = build("ps", served_job([RATE_BPS] * 2, [RATE_BPS]))
    with pytest.raises(UserError, match="--staleness: of byteps, delays cannot be predicted"):
        delayed(job, ["large=1"])
    assert set(BUILDERS_OF_RANKS) <= set(BUILDERS)


def test_the_commands_know_delays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "plain.json", tmp_path / "late.json"]
    for file, wishes in zip(files, ((), ("large=1",)), strict=True):
        write_strategy(file, mesh("dear", *wishes)[1])
    assert run_cli(["strategy", "check", str(files[1]), "--workers", "3"]) == 0
    assert run_cli(["strategy", "show", str(files[1])]) == 0
    assert "averages delayed by 1 step" in " ".join(capsys.readouterr().out.split())
    assert run_cli(["strategy", "diff", *map(str, files)]) == 1
    assert "staleness" in capsys.readouterr().out
