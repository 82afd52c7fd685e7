"""Real ranks with delayed averages: the bits of plain code, the bound on who is ahead, refusals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from byteprophet.errors import UserError
from byteprophet.job import Bucket, Model, Parameter, Strategy
from byteprophet.job.staleness import read_staleness, with_staleness
from byteprophet.job.strategy_file import Used, with_compressors, write_strategy
from byteprophet.torch import data_parallel

from .shared_jobs import start, succeed

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]
SIZES_BYTES = {
    "first.weight": 480,
    "first.bias": 80,
    "second.weight": 1600,
    "second.bias": 80,
    "sometimes.weight": 1600,
    "sometimes.bias": 80,
    "last.weight": 160,
    "last.bias": 8,
}
MODEL = Model(tuple(Parameter(name, size) for name, size in SIZES_BYTES.items()))


def write(
    folder: Path,
    way: str,
    runtime: str,
    staleness: Any,
    rules: list[dict[str, Any]] | None = None,
    **changes: Any,
) -> None:
    """Write a strategy of two buckets, which are divided where staleness asks for it.

    ``rules``: of compressors.
    """
    names = [*reversed(SIZES_BYTES)]
    sharded = runtime != "allreduce"
    buckets = (Bucket(tuple(names[:3]), 0, 3, sharded), Bucket(tuple(names[3:]), 1, 2, sharded))
    strategy = Strategy(runtime, buckets, **changes)
    delays = read_staleness(staleness, MODEL)
    used = Used(MODEL, with_staleness(strategy, delays), 0)
    write_strategy(folder / f"{way}.json", with_compressors(used, rules) if rules else used)


def run(folder: Path, ranks: int, **options: Any) -> list[dict[str, Any]]:
    succeed(start(ranks, "stale_worker.py", out=str(folder), **options))
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(ranks)]


def assert_bits(one: Any, other: Any, what: str) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0, msg=lambda said: f"{what}: {said}")


def differing(results: Mapping[str, Any]) -> int:
    return len({str([values.tolist() for values in each["given"]]) for each in results.values()})


WAYS: dict[str, dict[str, Any]] = {
    "none": {"runtime": "allreduce", "staleness": {}},
    "one": {"runtime": "allreduce", "staleness": {"*": 1}},
    "two": {"runtime": "dear", "staleness": {"first.*": 2, "sometimes.weight": 1}},
    "planned": {"runtime": "dear-planned", "staleness": {"*.weight": 1, "last.bias": 2}},
    "clipped": {"runtime": "dear-planned", "staleness": {"second.weight": 1}},
    "summed": {"runtime": "dear", "staleness": {"first.weight": 1}, "accumulation": 2},
}


def test_two_ranks_have_the_bits_of_plain_code(tmp_path: Path) -> None:
    for way, options in WAYS.items():
        write(tmp_path, way, **options)
    first, second = run(tmp_path, 2, ways=[*WAYS])
    assert differing(first) == len(WAYS)
    for way, results in first.items():
        assert_bits(second[way]["given"], results["given"], way)
        # Under sharded updates, clipping adds up norms of shards (docs/allreduce.md).
        if way == "clipped":
            torch.testing.assert_close(results["given"], results["by hand"], rtol=1e-5, atol=1e-7)
        else:
            assert_bits(results["given"], results["by hand"], way)


COMPRESSED: dict[str, dict[str, Any]] = {
    "late-topk": {
        "runtime": "allreduce",
        "staleness": {"*.weight": 1, "first.weight": 2},
        "rules": [{"parameters": ["*.weight"], "type": "topk", "k": 0.25}],
    },
    "late-randomk": {
        "runtime": "dear",
        "staleness": {"second.weight": 2, "last.bias": 1},
        "rules": [{"parameters": ["second.*"], "type": "randomk", "k": 0.5}],
    },
    "late-powersgd": {
        "runtime": "dear-planned",
        "staleness": {"*": 1},
        "rules": [{"parameters": ["second.weight"], "type": "powersgd", "rank": 2}],
    },
}


def test_delayed_averages_of_compressed_gradients(tmp_path: Path) -> None:
    """Compression goes on as without delays; only steps use the averages later."""
    for way, options in COMPRESSED.items():
        write(tmp_path, way, **options)
    ranks = run(tmp_path, 2, ways=[*COMPRESSED], resumes=True)
    for rank in ranks:
        for way, trained in rank.items():
            assert_bits(trained["given"], ranks[0][way]["given"], way)
            assert_bits(trained["given"], trained["by hand"], way)
            assert_bits(trained["whole"], trained["given"], way)
            assert_bits(trained["shards"], trained["given"], way)


def test_three_ranks_and_clipping_of_whole_averages(tmp_path: Path) -> None:
    write(tmp_path, "clipped", "allreduce", {"second.*": 1, "first.weight": 2})
    write(tmp_path, "planned", "dear-planned", {"first.weight": 1})
    results = run(tmp_path, 3, ways=["clipped", "planned"])
    for way in ("clipped", "planned"):
        for other in results[1:]:
            assert_bits(other[way]["given"], results[0][way]["given"], way)
        torch.testing.assert_close(
            results[0][way]["given"], results[0][way]["by hand"], rtol=1e-5, atol=1e-6
        )


def test_collectives_of_a_process_group_delay_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BYTEPROPHET_TRANSPORT", "collectives")
    write(tmp_path, "two", **WAYS["two"])
    write(tmp_path, "one", **WAYS["one"])
    for results in run(tmp_path, 2, ways=["two", "one"]):
        for way, trained in results.items():
            assert_bits(trained["given"], trained["by hand"], way)


def test_a_resumed_job_has_the_bits_of_one_that_was_not_interrupted(tmp_path: Path) -> None:
    write(tmp_path, "one", **WAYS["one"])
    write(tmp_path, "two", **WAYS["two"])
    for results in run(tmp_path, 2, ways=["one", "two"], resumes=True):
        for way, trained in results.items():
            assert_bits(trained["whole"], trained["given"], way)
            assert_bits(trained["shards"], trained["given"], way)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_fast_rank_is_as_far_ahead_as_it_may_and_no_further(steps: int, tmp_path: Path) -> None:
    """Rank 1 goes on only when rank 0 is ahead, so the job ends only if rank 0 does not wait."""
    waits_for = 5
    write(tmp_path, "slow", "allreduce", {"*": steps})
    ranks = run(tmp_path, 2, ways=["slow"], waits_for=waits_for, ahead=steps)
    times = [rank["slow"] for rank in ranks]
    for fast, slow in (times, times[::-1]):
        # The forward pass of iteration t needs the averages of iteration t - 1 - steps.
        for number, ended_ns in enumerate(fast["forward_ns"]):
            if number > steps:
                assert ended_ns > slow["backward_ns"][number - 1 - steps]
    fast, slow = times
    assert fast["forward_ns"][waits_for + steps] < slow["backward_ns"][waits_for]


def test_distributed_data_parallel_is_given_no_delays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "one", **WAYS["one"])
    monkeypatch.setenv("BYTEPROPHET_STRATEGY", str(tmp_path / "one.json"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(UserError, match=r"one\.json: only DistributedOptimizer delays averages"):
        data_parallel._distribute("allreduce", None, optimizer, None)  # type: ignore[arg-type]
