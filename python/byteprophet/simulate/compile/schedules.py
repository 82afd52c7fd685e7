"""Pipeline schedules: the order in which a rank works on stages and micro-batches.

The lists equal those of ``torch.distributed.pipelining.schedules``, without importing torch: GPipe,
1F1B, interleaved 1F1B (Narayanan et al. 2021), and ZB1P (Qi et al. 2023), which delays gradients of
parameters to fill the bubble. Stage ``s`` runs on rank ``s % ranks``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import islice
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
    delayed = strategy.delays_weights
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


_UNSHARDED = 3
"""Stages whose parameters torch's runtime keeps unsharded at a time."""


def receives_of(lists: Sequence[Sequence[Action]]) -> list[dict[Action, int]]:
    """Where ranks ask for messages, as the runtime of ``torch.distributed.pipelining`` does.

    It goes through the lists of all ranks in rounds, one entry of each rank at a time. When an
    action is taken, its message is sent, and the receive is written behind what the receiver has
    been given so far. A rank asks for a message only when it comes to that place. Entries that
    gather, shard or reduce parameters take rounds, too.

    Args:
        lists: the actions of each of several pipeline ranks, in order.

    Returns:
        For each rank and each of its actions that waits for a message: how many of its own actions
        come before the receive.
    """
    ranks = len(lists)
    last_stage = max(action.stage for actions in lists for action in actions)
    left = [deque(_entries(actions)) for actions in lists]
    asked: list[dict[Action, int]] = [{} for _ in lists]
    taken = [0] * ranks
    while any(left):
        for rank, entries in enumerate(left):
            if not entries:
                continue
            action = entries[0]
            if action is not None:
                if _receives(action, last_stage) and action not in asked[rank]:
                    continue
                taken[rank] += 1
                following = _following(action, last_stage)
                if following is not None:
                    receiver = following.stage % ranks
                    asked[receiver][following] = taken[receiver]
            entries.popleft()
    return asked


def _receives(action: Action, last_stage: int) -> bool:
    """Whether an action waits for a message."""
    stage, act, _ = action
    return (act is Act.FORWARD and stage > 0) or (act is Act.BACKWARD and stage < last_stage)


def _following(action: Action, last_stage: int) -> Action | None:
    """The action that waits for the message of another one; None: it sends none."""
    stage, act, number = action
    if act is Act.FORWARD and stage < last_stage:
        return Action(stage + 1, act, number)
    return Action(stage - 1, act, number) if act is Act.BACKWARD and stage > 0 else None


def _entries(actions: Sequence[Action]) -> Iterator[Action | None]:
    """Actions, and None for each entry about parameters that torch's runtime puts between them."""
    kinds = {action.act for action in actions}
    final = Act.WEIGHT if Act.WEIGHT in kinds else Act.BACKWARD
    ends = {action.stage: at for at, action in enumerate(actions) if action.act is final}
    different: list[int] = []  # stages among each action and those behind it
    seen: set[int] = set()
    for action in reversed(actions):
        seen.add(action.stage)
        different.append(len(seen))
    different.reverse()
    active: set[int] = set()
    for at, action in enumerate(actions):
        coming: set[int] = set()
        for following in islice(actions, at, None):
            coming.add(following.stage)
            if len(coming) == min(_UNSHARDED, different[at]):
                break
        yield from [None] * len(active ^ coming)
        active = coming
        yield action
        if ends[action.stage] == at:
            yield None
