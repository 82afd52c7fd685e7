"""What must hold of results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.execute.result import Simulated
from byteprophet.simulate.execute.simulate import simulate
from byteprophet.simulate.models.catalogue import find_model
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.tree.one_line import parse_strategy


def _run(model: str, line: str, gpus: int, cluster: str = "dgx-a100") -> Simulated:
    strategy = parse_strategy(line, gpus)
    return simulate(build(*find_model(model), strategy.samples), strategy, find_cluster(cluster))


def test_more_gpus_take_no_more_operations() -> None:
    """The graph of 16,384 GPUs is as large as that of 128, if the schedule is the same."""
    few, many = (
        _run("gpt3-175b", f"tp=8 pp=16 dp={dp} micro_batches=16", 128 * dp) for dp in (1, 128)
    )
    assert len(many.job.graph) < 1.2 * len(few.job.graph)
    assert many.iteration_ns > few.iteration_ns


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("dp=8 zero=1", "dp=8"),
        ("dp=8 zero=2", "dp=8 zero=1"),
        ("dp=8 zero=3", "dp=8 zero=2"),
        ("tp=8", "tp=4"),
        ("tp=8 sp=1", "tp=8"),
        ("dp=8 recompute=full", "dp=8"),
        ("pp=8 micro_batches=16", "pp=8 micro_batches=16 schedule=gpipe"),
        ("dp=8", "dp=8 micro_batch=2"),
    ],
)
def test_what_saves_memory_saves_it(less: str, more: str) -> None:
    results = [_run("gpt3-6.7b", line, 4 if line == "tp=4" else 8) for line in (less, more)]
    largest = [max(memory.total for memory in result.memory) for result in results]
    assert largest[0] < largest[1]


def test_delayed_gradients_need_what_was_recomputed() -> None:
    """With ZB1P, pipeline rank ``r`` delays gradients of parameters by ``r`` micro-batches."""
    plain, again = (
        _run("gpt3-6.7b", f"pp=4 micro_batches=8 schedule=zb1p recompute={which}", 4)
        for which in ("none", "full")
    )
    for result in (plain, again):
        stage = result.program.stages[3]
        kept_bytes = stage.saved_bytes + stage.recomputed_bytes
        assert result.memory[3].activations == 4 * kept_bytes
    assert 0.9 < again.memory[3].activations / plain.memory[3].activations < 1.1
    assert again.memory[0].activations < plain.memory[0].activations / 2
    assert again.memory[3].transient <= plain.memory[3].transient


def test_gradients_hide_behind_the_backward_pass() -> None:
    line = "dp=64 micro_batches=2"
    hidden, exposed = (
        _run("gpt3-1.3b", f"{line} overlap={overlap}", 64).iteration_ns for overlap in (1, 0)
    )
    assert hidden < 0.95 * exposed


def test_a_faster_network_helps_what_it_limits() -> None:
    few = find_cluster("a100-4xhdr")
    many = replace(few, network=replace(few.network, adapters=8))

    def times(line: str, gpus: int) -> list[int]:
        strategy = parse_strategy(line, gpus)
        model = build(*find_model("gpt3-1.3b"), strategy.samples)
        return [simulate(model, strategy, cluster).iteration_ns for cluster in (few, many)]

    slow, fast = times("dp=64 overlap=0", 64)
    assert fast < slow
    slow, fast = times("dp=8", 8)
    assert fast == slow
