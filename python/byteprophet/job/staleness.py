"""Delayed averages: parameters that are updated by the averages of earlier iterations.

A parameter with a *staleness* of k is updated at step t by the average of the gradients of
iteration t - k, on every rank. So its exchange has k more iterations to end, and the fastest rank
is at most k iterations ahead of the slowest one. The first k steps leave the parameter as it is.

A gradient may also travel compressed. Then compression goes on as without delays: what was not sent
of one gradient is added to the next one, in the order of iterations. Only steps use the averages
later.

A bucket holds parameters of one staleness only, because all of its averages have one deadline. A
bucket whose averages are delayed is not sharded: every rank gets whole averages. If each rank
updated a shard, the all-gather of the new parameters would begin only after ``step()``, and would
not be delayed.

Staleness changes what a job computes. So a user must ask for it. No search chooses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from types import MappingProxyType

from byteprophet.job.model import Model
from byteprophet.job.strategy import BYTEPS, Bucket, Delay, Strategy

MOST_STEPS = 2
NO_DELAYS: Mapping[str, int] = MappingProxyType({})


def steps_by_name(delays: Sequence[Delay]) -> dict[str, int]:
    """The staleness of each parameter that has one, by the parameter's name."""
    return {delay.parameter: delay.steps for delay in delays}


def read_staleness(table: object, model: Model) -> tuple[Delay, ...]:
    """The delays in ``table``, the member ``staleness`` of a file, in the order of ``model``.

    The keys of the table are names of parameters, or patterns as the shell has them (``*``, ``?``,
    ``[...]``). A name counts more than a pattern.

    Raises:
        ValueError: a key matches no parameter, a number of steps is none, or two patterns disagree
            about a parameter.
    """
    if not isinstance(table, dict):
        raise ValueError("staleness: must be a table: steps by names or patterns of parameters")
    named: dict[str, int] = {}
    matched: dict[str, tuple[int, str]] = {}
    for key, steps in table.items():
        if type(steps) is not int or not 0 <= steps <= MOST_STEPS:
            raise ValueError(f"staleness: {key!r} must be an integer from 0 to {MOST_STEPS}")
        if key in model.places:
            named[key] = steps
            continue
        names = [name for name in model.names if fnmatchcase(name, key)]
        if not names:
            raise ValueError(f"staleness: {key!r} matches no parameter")
        for name in names:
            before, other = matched.setdefault(name, (steps, key))
            if before != steps and name not in table:
                raise ValueError(
                    f"staleness: {other!r} and {key!r} give parameter {name!r} different numbers"
                )
    found = {**{name: steps for name, (steps, _) in matched.items()}, **named}
    return tuple(Delay(name, found[name]) for name in model.names if found.get(name))


def with_staleness(strategy: Strategy, delays: Sequence[Delay]) -> Strategy:
    """``strategy`` with ``delays`` and no others; its buckets are divided accordingly.

    Raises ``ValueError`` if a delayed parameter is in no bucket, and not compressed either, in
    a job without servers.
    """
    known = {name for bucket in strategy.buckets for name in bucket.parameters}
    known |= strategy.compressor_of.keys()
    missing = next((each.parameter for each in delays if each.parameter not in known), None)
    if missing is not None and strategy.runtime != BYTEPS:
        raise ValueError(f"staleness: parameter {missing!r} is in no bucket")
    buckets = divided(strategy.buckets, steps_by_name(delays))
    return replace(strategy, staleness=tuple(delays), buckets=buckets)


def divided(buckets: Sequence[Bucket], steps: Mapping[str, int]) -> tuple[Bucket, ...]:
    """``buckets`` with one staleness each; those whose averages are delayed are not sharded.

    Parts of a bucket come after one another where the bucket was. Buckets that need no division
    stay as they are.
    """
    parts: list[Bucket] = []
    for bucket in buckets:
        members: dict[int, list[str]] = {}
        for name in bucket.parameters:
            members.setdefault(steps.get(name, 0), []).append(name)
        parts.extend(
            replace(bucket, parameters=tuple(names), sharded=bucket.sharded and not late)
            for late, names in members.items()
        )
    if len(parts) == len(buckets):
        return tuple(parts)
    halves = [
        (place, number, gathers)
        for number, part in enumerate(parts)
        for gathers, place in enumerate((part.reduce_place, part.gather_place))
    ]
    place_of = {half[1:]: place for place, half in enumerate(sorted(halves))}
    return tuple(
        replace(part, reduce_place=place_of[number, 0], gather_place=place_of[number, 1])
        for number, part in enumerate(parts)
    )


def with_local_sgd(strategy: Strategy, steps: int) -> Strategy:
    """``strategy`` with local SGD of so many ``steps``; 0: without.

    Every rank has the whole state of its optimizer, so no bucket is sharded.
    """
    if not steps:
        return strategy
    buckets = tuple(replace(bucket, sharded=False) for bucket in strategy.buckets)
    return replace(strategy, local_sgd=steps, buckets=buckets)
