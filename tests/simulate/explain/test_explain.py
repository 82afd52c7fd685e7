"""What is said about a result: it adds up, and agrees with what schedules are known to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.program import compile_program
from byteprophet.simulate.execute.result import Simulated
from byteprophet.simulate.execute.simulate import simulate_program
from byteprophet.simulate.explain.critical_path import critical_path
from byteprophet.simulate.explain.lanes import COMPUTES, lanes, last_part
from byteprophet.simulate.explain.memory import (
    allocations,
    largest_rank,
    overflow,
    use_over_time,
)
from byteprophet.simulate.explain.operations import operations_of
from byteprophet.simulate.explain.plain import plain
from byteprophet.simulate.models.transformer import build

from ..jobs import program, random_job

CLUSTER = find_cluster("dgx-a100")


def simulated(model: str, strategy: str, gpus: int) -> Simulated:
    return simulate_program(program(model, strategy, gpus), CLUSTER)


@pytest.mark.parametrize("seed", range(12))
def test_memory_and_critical_path_add_up(seed: int) -> None:
    config, strategy = random_job(seed)
    model = build("gpt", config, strategy.samples)
    result = simulate_program(compile_program(model, strategy), CLUSTER)
    for rank, memory in enumerate(result.memory):
        found = allocations(result, rank)
        assert sum(one.size_bytes for one in found) == memory.total
        kept = sum(one.size_bytes for one in found if one.part == "activations")
        assert kept == memory.activations
        assert use_over_time(result, rank).activations.max() == memory.activations
    path = critical_path(result, operations_of(result))
    assert path.steps[-1].end_ns == result.iteration_ns
    assert [step.begin_ns for step in path.steps[1:]] == [step.end_ns for step in path.steps[:-1]]
    total = sum(path.by_use.values())
    assert total == pytest.approx(result.iteration_ns, abs=len(path.by_use))


@pytest.mark.parametrize(
    ("schedule", "in_flight"),
    [("gpipe", [8, 8, 8, 8]), ("1f1b", [4, 3, 2, 1])],  # Narayanan et al. 2021, section 2.2
)
def test_micro_batches_in_flight_at_the_peak(schedule: str, in_flight: list[int]) -> None:
    result = simulated("gpt2", f"pp=4 micro_batches=8 schedule={schedule}", 4)
    for rank, count in enumerate(in_flight):
        (wide,) = [
            one for one in allocations(result, rank) if one.what == "layers.*.mlp.wide"
        ]  # one in each of three layers
        assert wide.note == f"{3 * count} tensors"


def test_says_what_does_not_fit() -> None:
    """Rank 0 keeps the most micro-batches. Memory is limited between 2 and 3 of them."""
    result = simulated("gpt3-175b", "tp=8 pp=4 micro_batches=8 dp=2", 64)
    memory = result.memory[0]
    fixed, each = memory.total - memory.activations, memory.activations // 4
    limited = replace(result, memory_limit_bytes=fixed + 5 * each // 2)
    operations = operations_of(limited)
    found = overflow(limited, operations)
    assert found is not None
    assert (found.rank, found.gpus) == (0, (0, 15))
    assert found.missing_bytes == memory.total - limited.memory_limit_bytes
    assert found.during == "forward of micro-batch 2"
    assert found.since_ns == result.replayed.start_ns[result.job.ranks[0].computed[2]]
    never = overflow(replace(result, memory_limit_bytes=fixed - 1), operations)
    assert never is not None
    assert never.since_ns is None
    assert overflow(replace(result, memory_limit_bytes=memory.total), operations) is None


def test_lanes_show_what_ranks_do() -> None:
    result = simulated("gpt2", "pp=4 micro_batches=8 dp=2", 8)
    operations = operations_of(result)
    all_lanes = lanes(result, operations, critical_path(result, operations))
    computing = [lane for lane in all_lanes if lane.label == COMPUTES]
    assert [lane.role for lane in computing] == [f"rank-{rank}" for rank in range(4)]
    for lane in computing:
        kinds = np.array(lane.kind)
        assert [int((kinds == kind).sum()) for kind in ("forward", "optimizer")] == [8, 1]
        # Backward passes are one slice each, but for the last one: its buckets are sent apart.
        names = [
            name for kind, name in zip(lane.kind, lane.name, strict=True) if kind == "backward"
        ]
        assert names[:8] == [f"micro-batch {number}" for number in range(8)]
        assert set(names[8:]) == {"micro-batch 7"}
    begin_ns, kept = last_part(all_lanes, result.iteration_ns, 20)
    assert 0 < begin_ns < result.iteration_ns
    assert max(int(lane.end_ns.max()) for lane in kept) == result.iteration_ns - begin_ns
    assert sum(map(len, kept)) >= 20
    assert last_part(all_lanes, result.iteration_ns, 10_000)[0] == 0


def test_data_of_the_page() -> None:
    result = simulated("gpt3-175b", "tp=4 pp=4 micro_batches=8 recompute=full zero=1", 64)
    operations = operations_of(result)
    data = plain(result, operations, critical_path(result, operations), CLUSTER.name)
    assert not data["fits"]
    assert data["worst"]["rank"] == largest_rank(result)
    assert data["worst"]["exceeded"]["missing_bytes"] > 0
    for rank in data["ranks"]:
        assert sum(rank["by_use"].values()) == result.iteration_ns
    assert data["ranks"][3]["gpus"] == (48, 63)
    assert data["strategy"]["degrees of parallelism"] == "tp=4 dp=4 pp=4"
    assert data["strategy"]["recomputed in the backward pass"] == "layers.*"
    assert max(count for _, count in data["worst"]["over_time"]) == max(
        memory.total for memory in result.memory
    )
