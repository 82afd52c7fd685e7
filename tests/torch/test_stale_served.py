"""Delayed averages from servers: the bits of plain code, equal ranks, refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from byteprophet import schedulers
from byteprophet.errors import UserError
from byteprophet.job import Policy, Strategy
from byteprophet.job.staleness import read_staleness, with_staleness
from byteprophet.job.strategy import Keys
from byteprophet.job.strategy_file import Used, write_strategy
from byteprophet.launcher import JobSpec, run_job
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.observe import recording

from .test_stale import MODEL, assert_bits

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]
WORKER = Path(__file__).with_name("stale_worker.py")


def write_served(
    folder: Path, way: str, staleness: dict[str, int], keys: tuple[Keys, ...] = ()
) -> None:
    """A strategy under the default policy, as a job starts without further options."""
    settings, size_bytes = schedulers.resolve(schedulers.DEFAULT, {})
    policy = Policy(schedulers.DEFAULT, {**settings, schedulers.PARTITION: size_bytes})
    strategy = with_staleness(
        Strategy(partition_bytes=size_bytes, keys=keys), read_staleness(staleness, MODEL)
    )
    write_strategy(folder / f"{way}.json", Used(MODEL, strategy, 0, policy))


def run_served(
    folder: Path, workers: int, servers: int, record: bool = False, **options: Any
) -> list[dict[str, Any]]:
    """What each rank of a job with servers has saved."""
    said: list[str] = []
    environment = {"BYTEPROPHET_TIMEOUT_S": "100", "OMP_NUM_THREADS": "1"}
    if record:
        environment[recording.VARIABLE] = "1"
    spec = JobSpec(
        command=(sys.executable, str(WORKER), json.dumps({"out": str(folder), **options})),
        run_directory=folder / "run",
        directory=folder,
        workers=workers,
        servers=servers,
        environment=environment,
        timeout_s=200.0,
    )
    result = run_job(spec, lambda _, line: said.append(line))
    assert result.failed is None, said
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(workers)]


def test_two_ranks_have_the_bits_of_plain_code(tmp_path: Path) -> None:
    """Also where gradients share buffers, are placed by the strategy, and training is resumed."""
    placed = (Keys("first.weight", servers=(1,)), Keys("second.weight", servers=(0, 1)))
    write_served(tmp_path, "one", {"*": 1})
    write_served(tmp_path, "two", {"first.*": 2, "sometimes.weight": 1}, placed)
    write_served(tmp_path, "clipped", {"second.weight": 1, "last.bias": 2})
    ways = ["two", "one", "clipped"]  # servers stay, so the one that places comes first
    first, second = run_served(tmp_path, 2, 2, ways=ways, resumes=True)
    for way, trained in first.items():
        assert_bits(second[way]["given"], trained["given"], way)
        assert_bits(trained["given"], trained["by hand"], way)
        assert_bits(trained["whole"], trained["given"], way)
        assert_bits(trained["shards"], trained["given"], way)


def test_ranks_are_equal_and_a_record_is_not_replayed(tmp_path: Path) -> None:
    """Servers add in the order of arrival, so three ranks round otherwise than plain code."""
    write_served(tmp_path, "two", {"first.*": 2, "sometimes.weight": 1})
    results = run_served(tmp_path, 3, 1, record=True, ways=["two"])
    for other in results[1:]:
        assert_bits(other["two"]["given"], results[0]["two"]["given"], "ranks")
    torch.testing.assert_close(
        results[0]["two"]["given"], results[0]["two"]["by hand"], rtol=1e-5, atol=1e-6
    )
    with pytest.raises(UserError, match="averages from servers were delayed: such a job cannot"):
        measure_run(Run(tmp_path / "run"))


def test_a_fast_rank_is_as_far_ahead_as_it_may(tmp_path: Path) -> None:
    """Rank 1 goes on only when rank 0 is ahead, so the job ends only if rank 0 does not wait."""
    write_served(tmp_path, "slow", {"*": 1})
    times = [rank["slow"] for rank in run_served(
        tmp_path, 2, 1, ways=["slow"], waits_for=5, ahead=1
    )]  # fmt: skip
    fast, slow = times
    assert fast["forward_ns"][6] < slow["backward_ns"][5]
    for one, other in (times, times[::-1]):
        for number, ended_ns in enumerate(one["forward_ns"]):
            if number > 1:
                assert ended_ns > other["backward_ns"][number - 2]
