"""What each operation of a replayed iteration is: whose, what for, and what takes its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from byteprophet.simulate.compile.schedules import Act, Action
from byteprophet.simulate.costs.blocks import Spent
from byteprophet.simulate.execute.result import Simulated

_WORDS = {
    Act.FORWARD: "forward",
    Act.BACKWARD: "backward",
    Act.WEIGHT: "gradients of parameters",
}
OPTIMIZER = "optimizer"


@dataclass(frozen=True)
class What:
    """An operation.

    Attributes:
        rank: its pipeline rank; of a transfer, the one that waits for it.
        act: what the rank does: a word for an action, "optimizer", or the kind of a collective.
        of: what it does that for, such as "micro-batch 3".
        by_use: what its time is spent on, in proportion.
        computes: whether it is on a GPU, or else on links.
    """

    rank: int
    act: str
    of: str
    by_use: Mapping[Spent, int]
    computes: bool


def operations_of(result: Simulated) -> dict[int, What]:
    """All operations that take time, by number, rank after rank."""
    found: dict[int, What] = {}
    pp = result.program.strategy.mesh.pp
    for rank, record in enumerate(result.job.ranks):
        actions = {
            operation: done.action
            for done in record.done
            for operation in range(done.first, done.last + 1)
        }
        for operation, spent in zip(record.computed, record.spent, strict=True):
            action = actions.get(operation)
            act = _WORDS[action.act] if action else OPTIMIZER
            of = _of(action, pp) if action else ""
            found[operation] = What(rank, act, of, spent.by_use, computes=True)
        for operation, waits in record.waits.items():
            action = actions[operation]
            for flow, use in waits:
                text = f"for {_WORDS[action.act]} of {_of(action, pp)}"
                found[flow] = _transfer(rank, use, text)
        for flow, use, _ in record.waited:
            found[flow] = _transfer(rank, use, "operators")
        for flow, use in record.synchronised:
            text = OPTIMIZER if use is Spent.LAUNCH else "gradients"
            found[flow] = _transfer(rank, use, text)
        for flow in record.gathered:
            found[flow] = _transfer(rank, Spent.ALL_GATHER, "parameters")
    return found


def _transfer(rank: int, use: Spent, of: str) -> What:
    return What(rank, use.value, of, {use: 1}, computes=False)


def _of(action: Action, pp: int) -> str:
    chunk = action.stage // pp
    return f"micro-batch {action.micro_batch}" + (f", chunk {chunk}" if chunk else "")
