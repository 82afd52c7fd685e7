"""The collectives that each rank takes part in during an iteration, as the compiler infers them.

This is what a program of PyTorch with the same strategy calls, so the two lists can be compared
without any clock: ``experiments/hybrid.py`` does so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from byteprophet.simulate.compile.program import Program, Stage
from byteprophet.simulate.compile.schedules import Act
from byteprophet.simulate.compile.steps import Collective, CollectiveKind, Step
from byteprophet.simulate.execute.gradients import Sizes, buckets, held, merged
from byteprophet.simulate.execute.sharding import (
    gathered_back,
    gathers_before,
    gathers_late,
    reduces_each,
    reduction,
)
from byteprophet.simulate.tree.strategy import PRECISIONS


class Called(NamedTuple):
    """A collective.

    Attributes:
        kind: its kind.
        axes: the mesh axes whose ranks form the group; ("pp",) for messages between stages.
        size_bytes: the whole tensor of the group, as ``Collective`` counts it; of a message, what
            this rank sends.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    size_bytes: int


Calls: TypeAlias = Counter[Called]
"""How often each collective is called in an iteration."""


def inferred_calls(program: Program) -> list[Calls]:
    """The calls of each rank of each pipeline rank; all ranks of a pipeline rank are alike."""
    pp = program.strategy.mesh.pp
    calls = [Counter[Called]() for _ in range(pp)]
    for number, stage in enumerate(program.stages):
        calls[number % pp] += _of_operators(program, stage) + _of_buckets(program, number)
        if number:
            _add_messages(program, number, calls)
    for pp_rank in range(pp):
        calls[pp_rank] += _of_optimizer(program, program.stages[pp_rank::pp])
    tied = _of_tied(program)
    for pp_rank in {0, pp - 1} if pp > 1 else ():
        calls[pp_rank] += tied
    return calls


def _of_operators(program: Program, stage: Stage) -> Calls:
    """Collectives that operators wait for, of all micro-batches."""
    found: Calls = Counter()
    for block in stage.blocks:
        found += _counted((*block.compiled.forward, *block.compiled.backward))
    found += _counted(stage.last)
    return Counter({call: count * program.strategy.micro_batches for call, count in found.items()})


def _counted(steps: Iterable[Step]) -> Calls:
    return Counter(
        Called(step.kind, step.axes, step.size_bytes)
        for step in steps
        if isinstance(step, Collective)
    )


def _gathers(program: Program, stage: int) -> Counter[Act]:
    """How often ranks gather the sharded parameters of a stage, by the actions before which."""
    actions = program.actions[stage % program.strategy.mesh.pp]
    gathered = zip(actions, gathers_before(actions, program.strategy), strict=True)
    return Counter(one.act for one, gathers in gathered if gathers and one.stage == stage)


def _of_buckets(program: Program, number: int) -> Calls:
    """Collectives of a stage's gradients and, where ranks shard them, of its parameters."""
    strategy, stage = program.strategy, program.stages[number]
    reduced = strategy.micro_batches if reduces_each(strategy) else 1
    acts = _gathers(program, number)
    back = gathered_back(stage.blocks)
    found: Calls = Counter()
    for bucket in buckets(stage.blocks, strategy):
        whose = held([stage.blocks[at] for at in bucket], strategy.mesh)
        learns = any(back[at] for at in bucket)
        gathered = sum(times for act, times in acts.items() if act is Act.FORWARD or learns)
        gathered += gathers_late(strategy)
        for kind, times in ((reduction(strategy), reduced), (CollectiveKind.ALL_GATHER, gathered)):
            sizes = whose.sent_bytes(kind, strategy)
            found += _of_parameters(sizes, kind, times)
    return found


def _of_parameters(sizes: Sizes, kind: CollectiveKind, times: int) -> Calls:
    return Counter(
        {Called(kind, axes, size): times for axes, size in sizes if axes and size and times}
    )


def _add_messages(program: Program, stage: int, calls: list[Calls]) -> None:
    """What the previous stage sends to this one, and the gradients that it gets back."""
    mesh, count = program.strategy.mesh, program.strategy.micro_batches
    edge = program.stages[stage]
    for sender, size_bytes in ((stage - 1, edge.received_bytes), (stage, edge.returned_bytes)):
        if size_bytes or sender < stage:
            calls[sender % mesh.pp][Called(CollectiveKind.SEND, ("pp",), size_bytes)] += count


def _of_optimizer(program: Program, stages: Iterable[Stage]) -> Calls:
    """Sums of gradients before the optimizer: of what tensor-parallel ranks have parts of."""
    strategy = program.strategy
    whose = merged(held(stage.blocks, strategy.mesh) for stage in stages)
    if not whose.tensor_elements:
        return Counter()
    size = whose.tensor_elements * PRECISIONS[strategy.precision].sent_gradient_bytes
    return Counter({Called(CollectiveKind.ALL_REDUCE, ("tp",), size): 1})


def _of_tied(program: Program) -> Calls:
    """The sum of gradients that the first and the last pipeline rank share."""
    precision = PRECISIONS[program.strategy.precision]
    size = program.tied_elements * precision.sent_gradient_bytes
    return Counter({Called(CollectiveKind.ALL_REDUCE, ("pp",), size): 1} if size else {})
