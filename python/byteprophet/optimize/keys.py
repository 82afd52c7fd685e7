"""Changes of the keys of single gradients, and which gradients are worth one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from byteprophet import schedulers
from byteprophet.job import Job
from byteprophet.job.partitions import repeated
from byteprophet.job.strategy import Keys
from byteprophet.optimize.moves import Hints


def may_change_keys(job: Job) -> bool:
    """Whether single gradients can be given keys: under a policy, and if all have names.

    ``stock`` uses BytePS' own optimizer, which knows no strategies.
    """
    if job.policy is None or job.policy.name == schedulers.STOCK:
        return False
    names = set(job.model.names)
    return len(names) == len(job.model) and "" not in names


def keeps_compressed(job: Job, changed: Job) -> bool:
    """Whether ``changed`` cuts what the script of ``job`` compresses as that does.

    BytePS compresses partitions, so in others, another sum is left of a gradient.
    """
    kept = changed.strategy.partition_bytes == job.strategy.partition_bytes
    return kept or not job.strategy.compressed_by_script


def with_keys(job: Job, change: Callable[[Keys], Keys]) -> Job:
    """``job`` after ``change`` of the keys of each of its gradients."""
    known = {each.tensor: each for each in job.strategy.keys}
    changed = [change(known.get(name, Keys(name))) for name in job.model.names]
    keys = tuple(
        replace(each, servers=repeated(each.servers))
        for each in changed
        if each != Keys(each.tensor)
    )
    return replace(job, strategy=replace(job.strategy, keys=keys))


def places_on_path(job: Job, hints: Hints) -> list[int]:
    """Places of gradients in the model: those longest on the critical path first, then by size."""
    sizes = job.model.sizes_bytes
    on_path = hints.tensor_ns
    return sorted(range(len(sizes)), key=lambda place: (-on_path.get(place, 0), -sizes[place]))
