"""When FSDP2 gathers parameters, and what it holds unsharded.

Without pipeline ranks, parameters are sharded again after each pass, and gradients are sent after
each backward pass. With pipeline ranks, ``torch.distributed.pipelining`` keeps parameters after a
backward pass and adds up unsharded gradients, which it sends after a stage's last backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from byteprophet.simulate.compile.schedules import Act, Action
from byteprophet.simulate.tree.strategy import PRECISIONS, Strategy


def gathers_before(actions: Sequence[Action], strategy: Strategy) -> list[bool]:
    """For each action of a pipeline rank, whether it needs parameters that are sharded."""
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


def unsharded_bytes(elements: int, largest: int, strategy: Strategy) -> int:
    """The most bytes of unsharded gradients on a rank, and with ZeRO 3 of parameters.

    Args:
        elements: of all parameters.
        largest: of the parameters of the largest unit or bucket.
        strategy: what they are trained with.
    """
    precision = PRECISIONS[strategy.precision]
    if strategy.zero == 2:  # a bucket is whole until it is reduce-scattered
        return largest * precision.sent_gradient_bytes
    pipelined = strategy.mesh.pp > 1
    kept = elements if pipelined or not strategy.reshards else min(elements, 2 * largest)
    summed = elements if pipelined else largest
    return kept * precision.sent_parameter_bytes + summed * precision.sent_gradient_bytes
