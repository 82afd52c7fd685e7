"""The profiler on virtual jobs: how soon it knows, what it notices, what it does not fall for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from byteprophet.observe import Job
from byteprophet.profile import Profile
from byteprophet.profile.estimate import Forward
from byteprophet.profile.profiler import LEAST, MOST, MOST_AGAIN, WATCHED, Profiler
from byteprophet.session.job import SessionJob
from byteprophet.session.profiling import PROFILE, make_consumer

READY = {number: 40_000_000 * (5 - number // 4) for number in range(24)}
NAMES = {number: f"layer{number}.weight" for number in range(40)}
FORWARD_NS, LEAD_NS = 3_000_000, 7_000_000


class Watch:
    """A front whose every tensor takes FORWARD_NS, and whose backward begins LEAD_NS early."""

    def __init__(self) -> None:
        self.on = False
        self.passes: list[Forward] = []

    def set_enabled(self, on: bool) -> None:
        self.on = on

    def drain(self) -> Sequence[Forward]:
        passes, self.passes = self.passes, []
        return passes


class Running:
    """A profiler beside a virtual job; the observer looks every third iteration."""

    def __init__(self, job: Any) -> None:
        self.job, self.watch = job, Watch()
        self.profiles: list[tuple[int, Profile]] = []
        self.profiler = Profiler(
            Job(0, 2, NAMES, None),
            "prophet",
            lambda: int(self.job.iteration),
            self.watch,
            lambda profile: self.profiles.append((self.job.iteration, profile)),
        )

    def run(self, iterations: int, **kwargs: Any) -> None:
        for _ in range(iterations):
            every, measured = self.profiler.every, self.watch.on
            begin_ns = self.job.now_ns
            transfers = self.job.iterate(**kwargs)
            number = self.job.iteration
            if measured:
                times = dict.fromkeys(range(24), FORWARD_NS)
                self.watch.passes.append(Forward(number, begin_ns - LEAD_NS, times, 16))
            recorded = transfers if number % every == 0 else transfers[:0]
            self.profiler.take(recorded)

    def numbers(self) -> list[int]:
        return [profile.number for _, profile in self.profiles]


def test_a_quiet_job_is_known_after_the_fewest_iterations(virtual_job: Any) -> None:
    running = Running(virtual_job(READY, noise_ns=50_000))
    running.run(LEAST + 3)
    ((_, profile),) = running.profiles
    assert profile.iterations == LEAST
    assert [tensor.name for tensor in profile.tensors] == [f"layer{n}.weight" for n in range(24)]
    assert [burst.tensors for burst in profile.bursts] == [4] * 6
    assert [tensor.burst for tensor in profile.tensors] == [5 - n // 4 for n in range(24)]
    assert [burst.size_bytes for burst in profile.bursts] == [
        sum(2000 * (n + 1) for n in range(24) if 5 - n // 4 == burst) for burst in range(6)
    ]
    for number, burst in enumerate(profile.bursts):
        assert abs(burst.ready_ns - 40_000_000 * number) < 300_000
    assert profile.forward_ns == 24 * FORWARD_NS
    assert abs(profile.backward_ns - (200_000_000 + LEAD_NS)) < 500_000
    assert profile.batch_size == 16
    assert not running.watch.on
    assert running.profiler.every == WATCHED


def test_a_noisy_job_takes_more_but_not_without_end(virtual_job: Any) -> None:
    running = Running(virtual_job(READY, noise_ns=5_000_000))
    running.run(MOST + 3)
    ((_, profile),) = running.profiles
    assert LEAST < profile.iterations <= MOST


@pytest.mark.parametrize("scale", [0.5, 2.0, 0.85])
def test_another_batch_size_is_followed_within_20_iterations(
    virtual_job: Any, scale: float
) -> None:
    running = Running(virtual_job(READY, noise_ns=300_000))
    running.run(40)
    running.run(20, scale=scale)
    assert running.numbers() == [1, 2]
    profile = running.profiles[-1][1]
    assert abs(profile.bursts[-1].ready_ns / 200_000_000 - scale) < 0.02
    assert profile.iterations <= MOST_AGAIN
    assert profile.forward_ns == 24 * FORWARD_NS  # measured anew


def test_a_change_while_profiling_is_not_averaged_in(virtual_job: Any) -> None:
    running = Running(virtual_job(READY, noise_ns=4_000_000))
    running.run(12)
    assert not running.profiles
    running.run(60, scale=0.5)
    ready_ns = running.profiles[0][1].bursts[-1].ready_ns
    assert abs(ready_ns / 100_000_000 - 1) < 0.15


def test_a_switch_in_the_midst_of_an_iteration_is_no_drift(virtual_job: Any) -> None:
    """As observers look four times a second, whatever the job is at."""
    running = Running(virtual_job(READY, noise_ns=300_000))
    for number in range(80):
        transfers = running.job.iterate(scale=1.5 if number in (32, 47, 60) else 1.0)
        for half in (transfers["priority"] < -12, transfers["priority"] >= -12):
            is_recorded = running.job.iteration % running.profiler.every == 0
            running.profiler.take(transfers[half & is_recorded])
    assert running.numbers() == [1]


def test_frozen_layers_are_followed(virtual_job: Any) -> None:
    running = Running(virtual_job(READY, noise_ns=100_000))
    running.run(20)
    running.job.ready_ns = {n: t for n, t in READY.items() if n >= 8}
    running.run(20)
    assert running.numbers() == [1, 2]
    assert [t.name for t in running.profiles[-1][1].tensors] == [
        f"layer{n}.weight" for n in range(8, 24)
    ]


def test_another_model_is_followed(virtual_job: Any) -> None:
    running = Running(virtual_job(READY, noise_ns=100_000))
    running.run(20)
    running.job.ready_ns = {24 + n: 10_000_000 * (9 - n) for n in range(10)}
    running.run(20)
    assert running.numbers() == [1, 2]
    assert running.profiles[-1][1].tensors[0].name == "layer24.weight"


def test_accidents_are_no_drift(virtual_job: Any) -> None:
    running = Running(virtual_job(READY, noise_ns=300_000))
    running.run(20)
    for _ in range(10):
        running.run(1, scale=1.5)
        running.run(9)
        running.run(1, late_ns=90_000_000)
        running.run(9)
    assert running.numbers() == [1]


def test_steady_for_long_is_no_drift(virtual_job: Any) -> None:
    running = Running(virtual_job(READY, noise_ns=1_000_000))
    running.run(600)
    assert running.numbers() == [1]


def test_a_short_job_saves_what_there_is(virtual_job: Any) -> None:
    running = Running(virtual_job(READY))
    running.run(5)
    assert not running.profiles
    running.profiler.close()
    ((_, profile),) = running.profiles
    assert 1 <= profile.iterations < LEAST


@pytest.mark.parametrize("factor", [1, 1000])
def test_the_profile_of_another_job_is_told(
    factor: int, virtual_job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = Running(virtual_job(READY))
    running.run(LEAST + 3)
    given = running.profiles[0][1]
    fields = json.loads(given.to_json())
    for sized in (*fields["tensors"], *fields["bursts"]):
        sized["size_bytes"] *= factor
    (tmp_path / "given.json").write_text(json.dumps(fields))
    job = virtual_job(READY)
    consumer = make_consumer(
        {PROFILE: str(tmp_path / "given.json"), "BYTEPS_SCHEDULER": "prophet"},
        cast("Any", SimpleNamespace(iteration=lambda: job.iteration)),
        SessionJob(0, 2, NAMES, tmp_path),
    )
    assert consumer is not None
    for _ in range(MOST):
        consumer.take(job.iterate())
    told = capsys.readouterr().err
    assert told == (
        ""
        if factor == 1
        else "byteprophet: warning: BYTEPROPHET_PROFILE: is not of this job: layer0.weight has "
        "2000000 bytes in it, and 2000 in this job\n"
    )
