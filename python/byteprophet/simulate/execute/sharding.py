"""When data-parallel ranks gather parameters and send gradients, and what they hold unsharded.

With FSDP2 and without pipeline ranks, parameters are sharded again after each pass, and gradients
are sent after each backward pass. With pipeline ranks, ``torch.distributed.pipelining`` keeps
parameters after a backward pass and adds up unsharded gradients, which it sends after a stage's
last backward pass.

Before its backward pass, a unit is gathered only if its outputs have gradients: frozen parameters
behind which nothing is trained are not gathered again. But each unit prefetches the one before it,
whether or not that one has a backward pass (``FSDPParamGroup._backward_prefetch``, PyTorch 2.13).
"""

from __future__ import annotations

from collections.abc import Sequence

from byteprophet.simulate.compile.program import Block
from byteprophet.simulate.compile.schedules import Act, Action
from byteprophet.simulate.compile.steps import CollectiveKind, Phase
from byteprophet.simulate.tree.strategy import Strategy


def reduction(strategy: Strategy) -> CollectiveKind:
    """What is done with gradients."""
    scatters = strategy.reduce_scatters
    return CollectiveKind.REDUCE_SCATTER if scatters else CollectiveKind.ALL_REDUCE


def reduces_each(strategy: Strategy) -> bool:
    """Whether gradients are sent after each micro-batch, and not only after the last one."""
    return strategy.zero == 2 or (strategy.zero == 3 and strategy.mesh.pp == 1)


def gathers_late(strategy: Strategy) -> bool:
    """Whether parameters are gathered after the optimizer, and not before a forward pass."""
    return strategy.zero in (1, 2) and not strategy.overlap


def gathers_before(actions: Sequence[Action], strategy: Strategy) -> list[bool]:
    """For each action of a pipeline rank, whether parameters are gathered before it."""
    if strategy.zero < 3:
        first = strategy.zero > 0 and not gathers_late(strategy)
        return [first and act is Act.FORWARD and number == 0 for _, act, number in actions]
    unsharded: set[int] = set()
    found = []
    for stage, act, _ in actions:
        found.append(act is not Act.WEIGHT and stage not in unsharded)
        if act is Act.FORWARD:
            unsharded.add(stage)
            if strategy.reshards:
                unsharded.remove(stage)
        elif act is Act.BACKWARD and strategy.mesh.pp > 1:
            unsharded.add(stage)
        elif act is Act.BACKWARD:
            unsharded.discard(stage)
    return found


def gathered_back(blocks: Sequence[Block]) -> list[bool]:
    """For each block of a stage, whether it is gathered before a backward pass."""
    found: list[bool] = []
    prefetches = False
    for block in reversed(blocks):
        steps = (*block.compiled.forward, *block.compiled.backward)  # a loss may do both at once
        learns = any(step.phase is not Phase.FORWARD for step in steps)
        found.append(learns or prefetches)
        prefetches = learns if block.compiled.parameters else prefetches
    return found[::-1]


def unsharded_bytes(parameters: Sequence[int], gradients: Sequence[int], strategy: Strategy) -> int:
    """The most bytes of unsharded gradients on a rank, and with ZeRO 3 of parameters.

    Args:
        parameters: the bytes of each unit or bucket, as it is gathered.
        gradients: the bytes of each one's gradients, as they are sent.
        strategy: what they are trained with.
    """
    if strategy.zero == 2:  # a bucket is whole until it is reduce-scattered
        return max(gradients)
    if strategy.mesh.pp > 1:
        return sum(parameters) + sum(gradients)
    kept = min(sum(parameters), 2 * max(parameters)) if strategy.reshards else sum(parameters)
    return kept + max(gradients)
