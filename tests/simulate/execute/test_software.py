"""What software adds to a job: gradients added up, launches that block, and a loss in steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.compile.steps import Collective, CollectiveKind, Compute
from byteprophet.simulate.costs.blocks import BlockCosts, PassTime, Spent
from byteprophet.simulate.costs.roofline import Roofline
from byteprophet.simulate.execute.result import Simulated
from byteprophet.simulate.execute.simulate import simulate_program
from byteprophet.simulate.models.catalogue import gpt
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.operation.operator import Kind
from byteprophet.simulate.tree.one_line import parse_strategy

from ..jobs import program

_CLUSTER = find_cluster("dgx-a100")
_GPU = _CLUSTER.gpu
_BYTES_PER_NS = _GPU.memory_bytes_per_s * _GPU.memory_efficiency / 1e9
_MODEL = "gpt:layers=3,hidden=2048,heads=16,tied=0"


def _spent(job: Program, use: Spent) -> int:
    """What the first rank spends on ``use``."""
    result = simulate_program(job, _CLUSTER)
    return sum(one.by_use.get(use, 0) for one in result.job.ranks[0].spent)


@pytest.mark.parametrize("copies", [0, 1])
@pytest.mark.parametrize(
    ("precision", "added_bytes"), [("bf16_unfused", 10), ("fp16", 6), ("deepspeed_bf16", 12)]
)
def test_an_operator_adds_gradients_of_each_micro_batch(
    precision: str, added_bytes: int, copies: int
) -> None:
    """Megatron-LM reads 2 and 4 bytes, and writes 4. DeepSpeed also clears 2.

    With ``copies``, no second operator adds the same gradients up.
    """
    line = f"micro_batches=3 micro_batch=4 copies={copies}"
    fused = program(_MODEL, line.replace("copies=1", "copies=0"), 1)
    elements = sum(
        one.elements for block in fused.stages[0].blocks for one in block.compiled.parameters
    )
    more = _spent(program(_MODEL, f"{line} precision={precision}", 1), Spent.BACKWARD)
    more -= _spent(fused, Spent.BACKWARD)
    assert more == pytest.approx(3 * elements * added_bytes / _BYTES_PER_NS, rel=1e-3)


def test_with_blocking_launches_the_gpu_waits_for_each() -> None:
    """Kernels of this job take longer than launches, so that none is waited for otherwise."""
    line = "tp=2 micro_batch=16"
    job = program(_MODEL, line, 2)
    assert not _spent(job, Spent.LAUNCH)
    launched = 0
    for block in job.stages[0].blocks:
        for step in (*block.compiled.forward, *block.compiled.backward):
            launched += isinstance(step, Collective) or step.operator.kind is not Kind.VIEW
    launched += sum(isinstance(step, Collective) for step in job.stages[0].last)
    waited = _spent(program(_MODEL, f"{line} launch_blocking=1", 2), Spent.LAUNCH)
    assert waited == launched * _GPU.launch_ns


def test_the_host_also_launches_collectives() -> None:
    """With launches that take far longer than kernels, a pass lasts as long as its launches."""
    gpu = replace(_GPU, launch_ns=10_000_000)
    costs = BlockCosts(replace(_CLUSTER, gpu=gpu), Mesh(tp=2))
    compiled = program(_MODEL, "tp=2 micro_batch=1", 2).stages[0].blocks[1].compiled
    launched = sum(
        isinstance(step, Collective) or step.operator.kind is not Kind.VIEW
        for step in compiled.forward
    )
    assert sum(isinstance(step, Collective) for step in compiled.forward) == 2
    (passed,) = costs.time(compiled).forward
    assert isinstance(passed, PassTime)
    assert passed.time_ns == pytest.approx(launched * gpu.launch_ns, rel=1e-6)


def _head(*, fused: bool, ranks: int = 1) -> Program:
    strategy = parse_strategy(f"tp={ranks}", ranks)
    config = replace(gpt(1, 1024, 16, sequence=512), fused_loss=fused)
    return compile_program(build("gpt", config, strategy.samples), strategy)


def _loss_bytes(job: Program, *, backward: bool) -> float:
    """What the operators behind the logits move, per logit."""
    compiled = job.stages[0].blocks[-1].compiled
    roofline = Roofline(_GPU, Mesh())
    steps = compiled.backward if backward else compiled.forward
    times_ns = [
        roofline.time_ns(step)
        for step in steps
        if isinstance(step, Compute) and "vocabulary" in step.operator.size
        if step.operator.kind is Kind.MEMORY
    ]
    return sum(times_ns) * _BYTES_PER_NS / (512 * 51200)


def test_a_loss_in_steps_moves_all_logits_in_each() -> None:
    """Forward: 6 bytes to widen, 4 maximum, 8 shift, 8 exponentials, 4 sum, 12 probabilities.

    Backward: 4 read and 4 written as probabilities less the target, and 6 to 16 bits again.
    """
    assert _loss_bytes(_head(fused=False), backward=False) == pytest.approx(42, rel=1e-3)
    assert _loss_bytes(_head(fused=False), backward=True) == pytest.approx(14, rel=1e-3)
    assert _loss_bytes(_head(fused=True), backward=False) == pytest.approx(6, rel=1e-3)


def test_ranks_find_the_maximum_and_the_sum_of_each_token_together() -> None:
    def reduced(job: Program) -> list[int]:
        return [
            step.size_bytes
            for step in job.stages[0].blocks[-1].compiled.forward
            if isinstance(step, Collective) and step.kind is CollectiveKind.ALL_REDUCE
        ]

    fused, steps = reduced(_head(fused=True, ranks=2)), reduced(_head(fused=False, ranks=2))
    assert sorted(steps) == sorted([*fused, 4 * 512, 4 * 512])


def test_results_of_ring_attention_are_merged_step_by_step() -> None:
    """Of 4 ranks: 33 bytes per element in 3 further steps forward, 58 in 4 steps backward."""
    line = "cp=4 ring=1 micro_batch=8"
    more = _spent(program(_MODEL, f"{line} copies=1", 4), Spent.COPIES)
    elements = 3 * 8 * 2048 / 4 * 2048  # layers, samples, tokens, hidden
    assert more == pytest.approx(elements * (3 * 33 + 4 * 58) / _BYTES_PER_NS, rel=1e-3)
    assert not _spent(program(_MODEL, line, 4), Spent.COPIES)


def test_all_reduced_gradients_take_twice_as_long_to_send() -> None:
    """A ring sends everything twice, or once to reduce-scatter. Parameters are gathered in both."""

    def sending_ns(line: str) -> int:
        result = simulate_program(program(_MODEL, f"dp=8 zero=1 overlap=0 {line}", 8), _CLUSTER)
        record = result.job.ranks[0]
        flows = [flow for flow, _ in record.synchronised]
        took = result.replayed.end_ns[flows] - result.replayed.start_ns[flows]
        return int(took.sum())

    assert sending_ns("all_reduce=1") == pytest.approx(2 * sending_ns(""), rel=0.05)


def test_alibi_writes_a_bias_for_each_score_and_turns_nothing() -> None:
    """2 bytes are written, and 2 read by the product. Queries are read, too, which is little."""
    config = replace(gpt(1, 1024, 16, sequence=512), positions=0, fused_attention=False)
    operators = {}
    for alibi in (False, True):
        job = compile_program(build("gpt", replace(config, alibi=alibi), 1), parse_strategy("", 1))
        steps = job.stages[0].blocks[1].compiled.forward
        computes = [step for step in steps if isinstance(step, Compute)]
        operators[alibi] = {step.operator.name: step for step in computes}
    assert operators[False].keys() - operators[True].keys() == {"rotary"}
    assert operators[True].keys() - operators[False].keys() == {"alibi"}
    moved = Roofline(_GPU, Mesh()).time_ns(operators[True]["alibi"]) * _BYTES_PER_NS
    assert moved == pytest.approx(4 * 16 * 512 * 512 + 2 * 512 * 1024)


@pytest.mark.parametrize("wrong", [{"positions": 512}, {"fused_attention": True}])
def test_alibi_needs_scores_and_no_positions(wrong: dict[str, int]) -> None:
    values = {"positions": 0, "fused_attention": False, "alibi": True} | wrong
    with pytest.raises(UserError, match="alibi needs fused_attention=0 and positions=0"):
        replace(gpt(1, 1024, 16, sequence=512), **values)


def test_without_compilation_biases_and_copies_take_time() -> None:
    """The output of two products is read again, and gradients of its parts are copied."""
    tokens, hidden, layers = 4 * 2048, 2048, 3
    line = "micro_batch=4"
    plain, eager = (program(_MODEL, f"{line}{more}", 1) for more in ("", " eager=1"))
    moved = layers * tokens * 2 * ((3 + 4) * hidden + 2 * 3 * hidden)
    more = _spent(eager, Spent.BACKWARD) - _spent(plain, Spent.BACKWARD)
    assert more == pytest.approx(moved / _BYTES_PER_NS, rel=1e-3)
    assert _spent(eager, Spent.FORWARD) == _spent(plain, Spent.FORWARD)
    elements = sum(
        one.elements
        for block in plain.stages[0].blocks
        for one in block.compiled.parameters
        if not one.repeated
    )
    results = [simulate_program(job, _CLUSTER) for job in (plain, eager)]
    before, after = (one.by_use[Spent.OPTIMIZER] for one in results)
    assert after - before == pytest.approx(elements * (4 + 4) / _BYTES_PER_NS, rel=1e-3)


def test_without_compilation_the_host_launches_more() -> None:
    """In a layer: two biases are added and have sums, as have those of two products. Three copies.

    Twelve parameters whose gradients are added up.
    """
    gpu = replace(_GPU, launch_ns=10_000_000_000)

    def launches(*, eager: bool, adds: float) -> int:
        compiled = program(_MODEL, "micro_batch=1", 1).stages[0].blocks[1].compiled
        costs = BlockCosts(replace(_CLUSTER, gpu=gpu), Mesh(), eager=eager, adds=adds)
        return round(costs.host_ns(compiled) / gpu.launch_ns)

    plain = launches(eager=False, adds=0.0)
    assert launches(eager=True, adds=0.0) == plain + 2 + 2 + 2 + 3
    assert launches(eager=True, adds=5.0) == plain + 2 + 2 + 2 + 3 + 12


def test_without_compilation_the_host_runs_ahead_of_the_gpu() -> None:
    """An iteration takes what the slower of both needs, wherever the host is late."""
    line = "micro_batch=1 micro_batches=2 eager=1"
    times = []
    for launch_ns in (1, 20_000, 10_000_000, 20_000_000):
        cluster = replace(_CLUSTER, gpu=replace(_GPU, launch_ns=launch_ns))
        times.append(simulate_program(program(_MODEL, line, 1), cluster).iteration_ns)
    launches = (times[3] - times[2]) / 10_000_000
    assert times[2] == pytest.approx(launches * 10_000_000, rel=1e-6)
    assert launches * 20_000 < times[0] == times[1]
    blocked = program(_MODEL, "micro_batch=1 micro_batches=2 eager=1 launch_blocking=1", 1)
    assert _spent(blocked, Spent.LAUNCH) == pytest.approx(launches * _GPU.launch_ns)


def test_the_host_launches_while_the_gpu_waits_for_parameters() -> None:
    """An iteration takes what the host needs, or what gathers need, and not both."""
    line = "dp=16 zero=3 micro_batch=1 eager=1"
    slow = replace(_CLUSTER.network, efficiency=_CLUSTER.network.efficiency / 100)

    def run(launch_ns: int) -> Simulated:
        gpu = replace(_GPU, launch_ns=launch_ns)
        return simulate_program(program(_MODEL, line, 16), replace(_CLUSTER, gpu=gpu, network=slow))

    fast, other, late = (run(launch_ns) for launch_ns in (1, 2_000_000, 100_000_000))
    assert fast.iteration_ns == other.iteration_ns
    assert late.iteration_ns > 2 * fast.iteration_ns
    assert late.iteration_ns == pytest.approx(run(200_000_000).iteration_ns / 2, rel=1e-3)
    assert sum(late.by_use.values()) == late.iteration_ns
    assert late.by_use[Spent.LAUNCH] > 0.5 * late.iteration_ns


def test_a_gated_activation_keeps_what_its_gate_gives() -> None:
    line = "micro_batch=2"
    model = "llama:layers=1,hidden=64,heads=2,inner=256,sequence=32"
    plain, eager = (program(model, f"{line}{more}", 1) for more in ("", " eager=1"))
    kept = [job.stages[0].saved_bytes for job in (plain, eager)]
    assert kept[1] - kept[0] == 2 * 32 * 256 * 2
