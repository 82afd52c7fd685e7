"""The critical path: the chain of operations that each waited for the one before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from byteprophet.simulate.costs.blocks import Spent
from byteprophet.simulate.execute.result import Simulated
from byteprophet.simulate.explain.operations import What


@dataclass(frozen=True)
class Step:
    """A part of the path that one pipeline rank spends on one thing. ``count``: its operations."""

    rank: int
    act: str
    begin_ns: int
    end_ns: int
    first: str
    last: str
    count: int


@dataclass(frozen=True)
class CriticalPath:
    """The path in order. ``by_use``: what its time is spent on, the largest first."""

    steps: tuple[Step, ...]
    by_use: Mapping[Spent, int]


def critical_path(result: Simulated, operations: Mapping[int, What]) -> CriticalPath:
    """The path that ends with the last operation of the iteration."""
    steps: list[Step] = []
    sums: dict[Spent, float] = {}
    now_ns = 0
    for operation in result.replayed.critical_path().tolist():
        end_ns = int(result.replayed.end_ns[operation])
        what = operations.get(operation)
        if what is None or end_ns == now_ns:
            continue  # ranks meet, which takes no time
        parts = sum(what.by_use.values())
        for use, part in what.by_use.items():
            sums[use] = sums.get(use, 0.0) + part / parts * (end_ns - now_ns)
        same = steps and (steps[-1].rank, steps[-1].act) == (what.rank, what.act)
        before = steps.pop() if same else Step(what.rank, what.act, now_ns, 0, what.of, "", 0)
        count = before.count + 1
        steps.append(
            Step(what.rank, what.act, before.begin_ns, end_ns, before.first, what.of, count)
        )
        now_ns = end_ns
    ordered = sorted(sums, key=lambda use: -sums[use])
    return CriticalPath(tuple(steps), {use: round(sums[use]) for use in ordered})
