"""FSDP2 with and without pipeline ranks: what is gathered when, and what is held."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.schedules import Act, Action
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.blocks import BlockCosts, Spent
from byteprophet.simulate.execute.job_graph import build
from byteprophet.simulate.execute.sharding import gathers_before
from byteprophet.simulate.execute.simulate import simulate_program
from byteprophet.simulate.explain.collectives import inferred_calls
from byteprophet.simulate.tree.one_line import parse_strategy

from ..jobs import program

_MODEL = "gpt:layers=8,hidden=512,heads=8,tied=0"


def _gathers(line: str, gpus: int, actions: str) -> str:
    """For actions such as "F0 B0", those that gather."""
    acts = {"F": Act.FORWARD, "B": Act.BACKWARD, "W": Act.WEIGHT}
    names = actions.split()
    listed = [Action(0, acts[name[0]], int(name[1:])) for name in names]
    gathers = gathers_before(listed, parse_strategy(line, gpus))
    return " ".join(name for name, gathered in zip(names, gathers, strict=True) if gathered)


@pytest.mark.parametrize(
    ("line", "gathered"),
    [
        # As torchtitan by default: reshard_after_forward is False with pipeline ranks.
        ("pp=2 zero=3", "F0"),
        ("pp=2 zero=3 reshard=never", "F0"),
        # torch.distributed.pipelining calls set_reshard_after_backward(False).
        ("pp=2 zero=3 reshard=always", "F0 F1 B0 B1"),
    ],
)
def test_pipeline_ranks_keep_what_they_gathered(line: str, gathered: str) -> None:
    actions = "F0 F1 B0 W0 F2 B1 B2"
    assert _gathers(line, 4, actions) == gathered


@pytest.mark.parametrize(
    ("line", "gathered"),
    [("zero=3", "F0 B0 F1 B1"), ("zero=3 reshard=never", "F0 F1")],
)
def test_without_pipeline_ranks_parameters_are_sharded_after_each_backward_pass(
    line: str, gathered: str
) -> None:
    assert _gathers(line, 4, "F0 B0 F1 B1") == gathered


@pytest.mark.parametrize(
    ("line", "gpus", "each"),
    [
        ("zero=3 micro_batches=3", 4, {"all-gather": 6, "reduce-scatter": 3}),
        ("zero=3 micro_batches=3 reshard=never", 4, {"all-gather": 3, "reduce-scatter": 3}),
        ("zero=3 pp=2 micro_batches=3", 4, {"all-gather": 1, "reduce-scatter": 1}),
    ],
)
def test_collectives_per_unit_and_iteration(line: str, gpus: int, each: dict[str, int]) -> None:
    compiled = program(_MODEL, line, gpus)
    job = build(compiled, BlockCosts(find_cluster("dgx-h100"), compiled.strategy.mesh))
    for rank, record in enumerate(job.ranks):
        kinds = Counter(use for waits in record.waits.values() for _, use in waits)
        kinds += Counter(use for _, use in record.synchronised)
        units = len(compiled.stages[rank].blocks)
        assert kinds[Spent.ALL_GATHER] == units * each["all-gather"]
        assert kinds[Spent.REDUCE_SCATTER] == units * each["reduce-scatter"]


def test_pipeline_ranks_gather_when_their_input_has_come() -> None:
    """FSDP2 gathers in the hooks of a stage's forward pass."""
    compiled = program(_MODEL, "zero=3 pp=2 micro_batches=4", 8)
    result = simulate_program(compiled, find_cluster("a100-4xhdr"))
    start_ns, end_ns = result.replayed.start_ns, result.replayed.end_ns
    first, second = result.job.ranks
    gathers = [
        flow for waits in second.waits.values() for flow, use in waits if use is Spent.ALL_GATHER
    ]
    (message,) = [flow for flow, _ in second.waits[second.done[0].first]]
    assert len(gathers) == len(compiled.stages[1].blocks)
    assert min(start_ns[gathers]) == end_ns[message]
    assert end_ns[message] > end_ns[first.done[0].last]


def test_unsharded_parameters_and_gradients_are_held_with_pipeline_ranks() -> None:
    """Of 8 equal layers and what is around: bf16 parameters and fp32 gradients of all here."""
    result = simulate_program(
        program(_MODEL, "zero=3 pp=2 precision=fsdp2 micro_batches=4", 8), find_cluster("dgx-h100")
    )
    for rank, memory in enumerate(result.memory):
        stage = result.program.stages[rank]
        elements = sum(one.elements for block in stage.blocks for one in block.compiled.parameters)
        activations = stage.transient_bytes
        assert memory.transient - activations == elements * (2 + 4)
        assert memory.parameters == elements * 4 // 4


def test_with_zero_2_a_bucket_of_gradients_is_whole_until_it_is_sent() -> None:
    """The largest one is the last: the embedding and what is left of the layers, in 32 bits."""
    result = simulate_program(program(_MODEL, "dp=8 zero=2", 8), find_cluster("dgx-h100"))
    (memory,), (stage,) = result.memory, result.program.stages
    of_last = (one.elements for block in stage.blocks[:3] for one in block.compiled.parameters)
    assert memory.transient - stage.transient_bytes == 4 * sum(of_last)


def test_the_first_unit_of_a_pass_is_gathered_when_the_pass_before_has_ended() -> None:
    """Backward, it has just been sharded. Forward, FSDP2 waits for kernels before the root."""
    result = simulate_program(
        program(_MODEL, "dp=8 zero=3 micro_batches=2", 8), find_cluster("dgx-h100")
    )
    (record,) = result.job.ranks
    replayed = result.replayed
    assert [done.action.act for done in record.done] == 2 * [Act.FORWARD, Act.BACKWARD]
    for before, after in pairwise(record.done):
        (gather,) = (flow for flow, use in record.waits[after.first] if use is Spent.ALL_GATHER)
        assert replayed.start_ns[gather] == replayed.end_ns[before.last]
        assert replayed.start_ns[after.first] == replayed.end_ns[gather]


def test_only_weights_of_linear_layers_are_gathered_with_8_bits() -> None:
    """As torchtitan's ``enable_fsdp_float8_all_gather``: not the vocabulary, norms and biases."""
    model = "llama:layers=2,hidden=256,heads=4,inner=1024,vocabulary=8192,qkv_bias=1"
    compiled = program(model, "zero=3 precision=fsdp2_fp8", 8)
    weights = 4 * 256**2 + 3 * 256 * 1024
    vocabulary, norm, bias = 8192 * 256, 256, 3 * 256
    units = [2 * vocabulary, weights + 2 * (2 * norm + bias), 2 * (norm + vocabulary)]
    (calls,) = inferred_calls(compiled)
    gathered = {call.size_bytes for call in calls if call.kind is CollectiveKind.ALL_GATHER}
    assert gathered == set(units)
    (memory,) = simulate_program(compiled, find_cluster("dgx-h100")).memory
    # Two units are gathered at a time, and the gradients of the largest one have 32 bits.
    unsharded = 2 * units[2] + 4 * (norm + vocabulary)
    assert memory.transient - compiled.stages[0].transient_bytes == unsharded


def test_experts_and_routers_are_gathered_with_16_bits() -> None:
    sizes = (
        "llama:layers=1,hidden=256,heads=4,inner=512,vocabulary=4096,experts=32,active_experts=2"
    )
    (calls,) = inferred_calls(program(sizes, "zero=3 precision=fsdp2_fp8", 8))
    experts, router, norms = 32 * 3 * 256 * 512, 32 * 256, 2 * 256
    layer = 4 * 256**2 + 2 * (experts + router + norms)
    gathered = {call.size_bytes for call in calls if call.kind is CollectiveKind.ALL_GATHER}
    assert layer in gathered
