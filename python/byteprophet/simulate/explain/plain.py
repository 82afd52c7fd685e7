"""A result as plain data, as the page about it shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from byteprophet.simulate.costs.blocks import Spent
from byteprophet.simulate.execute.result import Simulated, use_of_rank
from byteprophet.simulate.explain.critical_path import CriticalPath
from byteprophet.simulate.explain.memory import (
    Use,
    allocations,
    gpus_of,
    largest_rank,
    overflow,
    use_over_time,
)
from byteprophet.simulate.explain.operations import What
from byteprophet.simulate.tree.strategy import Strategy

_MOST_STEPS = 60
"""Of the critical path: those that take longest are listed."""
_MOST_POINTS = 2_000
"""Of the chart of memory."""
_IN_WORDS = (
    "mesh",
    "rules",
    "micro_batches",
    "micro_batch",
    "schedule",
    "chunks",
    "zero",
    "overlap",
    "precision",
)
"""Fields of a strategy that ``strategy_words`` says in words."""


def plain(
    result: Simulated, operations: dict[int, What], path: CriticalPath, cluster: str
) -> dict[str, Any]:
    """All figures and tables of the page but the timeline."""
    model, strategy = result.program.model, result.program.strategy
    worst = largest_rank(result)
    exceeded = overflow(result, operations)
    return {
        "run": f"{model.name} on {result.gpus} GPUs of {cluster}, simulated",
        "model": model.name,
        "parameters": model.parameters(),
        "gpus": result.gpus,
        "cluster": cluster,
        "strategy": strategy_words(strategy),
        "iteration_ns": result.iteration_ns,
        "samples": strategy.samples * strategy.micro_batches,
        "items": "tokens" if model.tokens > 1 else "samples",
        "per_s": result.tokens_per_s,
        "mfu": result.mfu,
        "fits": result.fits,
        "limit_bytes": result.memory_limit_bytes,
        "by_use": _by_use(result.by_use),
        "ranks": [
            {
                "rank": rank,
                "gpus": gpus_of(result, rank),
                "by_use": _by_use(use_of_rank(result.replayed, record)),
                "memory": {**asdict(memory), "total": memory.total},
            }
            for rank, (record, memory) in enumerate(
                zip(result.job.ranks, result.memory, strict=True)
            )
        ],
        "worst": {
            "rank": worst,
            "allocations": [asdict(one) for one in allocations(result, worst)],
            "exceeded": None if exceeded is None else asdict(exceeded),
            "over_time": _points(use_over_time(result, worst), result.iteration_ns),
        },
        "path": _path(path),
    }


def strategy_words(strategy: Strategy) -> dict[str, str]:
    """The settings of a strategy by name; degrees of 1 and defaults are left out."""
    degrees = " ".join(f"{axis}={size}" for axis, size in strategy.mesh.sizes.items() if size > 1)
    found = {
        "degrees of parallelism": degrees or "one GPU",
        "micro-batches": f"{strategy.micro_batches} of {strategy.micro_batch} samples on each "
        "data-parallel rank",
        "precision": strategy.precision,
    }
    if strategy.mesh.pp > 1 or strategy.schedule != Strategy.schedule:
        chunks = f", {strategy.chunks} stages per rank" if strategy.chunks > 1 else ""
        found["pipeline schedule"] = strategy.schedule + chunks
    if strategy.zero:
        found["sharded over data-parallel ranks (zero)"] = str(strategy.zero)
    recomputed = [
        f"{'' if rule.recompute else 'not '}{rule.pattern or 'the whole model'}"
        for rule in strategy.rules
        if rule.recompute is not None
    ]
    if recomputed:
        found["recomputed in the backward pass"] = ", ".join(recomputed)
    if not strategy.overlap:
        found["gradients are sent"] = "after the last backward pass"
    for field in fields(Strategy):
        value = getattr(strategy, field.name)
        if field.name not in _IN_WORDS and value != field.default:
            found[field.name] = str(int(value) if isinstance(value, bool) else value)
    return found | _of_nodes(strategy)


def _of_nodes(strategy: Strategy) -> dict[str, str]:
    """What the rules of a strategy say, but for recomputation, by their patterns."""
    found: dict[str, dict[str, str]] = {}
    for rule in strategy.rules:
        words = found.setdefault(f"nodes {rule.pattern}" if rule.pattern else "all nodes", {})
        for axis, dims in rule.splits:
            if strategy.mesh.sizes[axis] > 1:
                words[axis] = f"{axis} splits {' or '.join(dims) or 'nothing'}"
        if rule.stage is not None:
            words["stage"] = f"stage {rule.stage}"
        if rule.micro_batches:
            most = f", at most {rule.max_ongoing} ongoing" if rule.max_ongoing else ""
            words["schedule"] = f"{rule.micro_batches} micro-batches along {rule.along}{most}"
    return {where: "; ".join(words.values()) for where, words in found.items() if words}


def _by_use(times_ns: Mapping[Spent, int]) -> dict[str, int]:
    return {use.value: time_ns for use, time_ns in times_ns.items() if time_ns}


def _points(use: Use, end_ns: int) -> list[list[int]]:
    """Times and all bytes in use from then on; of very many points, the largest of each part."""
    times_ns = np.append(use.times_ns, end_ns)
    in_use = np.append(use.activations, use.activations[-1]) + use.fixed_bytes
    if len(times_ns) > _MOST_POINTS:
        starts = np.linspace(0, len(times_ns), _MOST_POINTS, endpoint=False).astype(np.int64)
        times_ns, in_use = times_ns[starts], np.maximum.reduceat(in_use, starts)
    points: list[list[int]] = np.stack([times_ns, in_use], axis=1).tolist()
    return points


def _path(path: CriticalPath) -> dict[str, Any]:
    by_time = sorted(path.steps, key=lambda step: step.begin_ns - step.end_ns)[:_MOST_STEPS]
    return {
        "by_use": _by_use(path.by_use),
        "steps": [asdict(step) for step in sorted(by_time, key=lambda step: step.begin_ns)],
        "count": len(path.steps),
    }
