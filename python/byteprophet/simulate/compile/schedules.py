"""Pipeline schedules: the order in which a rank works on stages and micro-batches.

The lists equal those of ``torch.distributed.pipelining.schedules``, without importing torch: GPipe,
1F1B, interleaved 1F1B (Narayanan et al. 2021), and ZB1P (Qi et al. 2023), which delays gradients of
parameters to fill the bubble. Stage ``s`` runs on rank ``s % ranks``.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from byteprophet.simulate.tree.strategy import Strategy


class Act(IntEnum):
    """What is done for a stage and micro-batch."""

    FORWARD = 0
    BACKWARD = 1
    """With ZB1P, only the gradients of inputs."""
    WEIGHT = 2
    """The gradients of parameters, if they are delayed."""


class Action(NamedTuple):
    """One entry of a schedule."""

    stage: int
    act: Act
    micro_batch: int


def actions_of(strategy: Strategy, rank: int) -> list[Action]:
    """The actions of pipeline rank ``rank``, in order."""
    pp, count, chunks = strategy.mesh.pp, strategy.micro_batches, strategy.chunks
    behind = pp - 1 - rank
    if strategy.schedule == "gpipe":
        numbers = range(count)
        return [Action(rank, act, at) for act in (Act.FORWARD, Act.BACKWARD) for at in numbers]
    delayed = strategy.schedule == "zb1p"
    round_size = count // max(1, count // pp)
    warmup = (chunks - 1) * round_size + behind * (2 if chunks > 1 else 1)
    warmup = min(warmup, count * chunks)
    if strategy.max_ongoing:
        warmup = min(warmup, strategy.max_ongoing - 1)
    forwards = list(_of_stages(rank, pp, chunks, round_size, count, reverse=False))
    backwards = list(_of_stages(rank, pp, chunks, round_size, count, reverse=True))
    actions = [Action(stage, Act.FORWARD, number) for stage, number in forwards[:warmup]]
    weights = 0
    for done, (stage, number) in enumerate(backwards):
        if warmup + done < len(forwards):
            ahead, forward = forwards[warmup + done]
            actions.append(Action(ahead, Act.FORWARD, forward))
        actions.append(Action(stage, Act.BACKWARD, number))
        if delayed and done >= rank:
            late, earlier = backwards[weights]
            actions.append(Action(late, Act.WEIGHT, earlier))
            weights += 1
    if delayed:
        actions += [Action(stage, Act.WEIGHT, number) for stage, number in backwards[weights:]]
    return actions


def _of_stages(
    rank: int, pp: int, chunks: int, round_size: int, count: int, *, reverse: bool
) -> Iterator[tuple[int, int]]:
    """Stages and micro-batches: a round of micro-batches through one chunk, then the next chunk."""
    for step in range(count * chunks):
        rounds, rest = divmod(step, round_size * chunks)
        chunk, at = divmod(rest, round_size)
        yield (chunks - 1 - chunk if reverse else chunk) * pp + rank, rounds * round_size + at
