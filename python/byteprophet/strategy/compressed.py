"""A recorded job under a strategy that compresses gradients: what it needs, and links' loads.

Such jobs cannot be replayed yet. So their loads are sums, as those of ``routed.py``. A form of b
bytes that is all-gathered crosses each link of a rank P - 1 times in each direction. That is as
much as an all-reduce of b P / 2 bytes moves.
"""

from __future__ import annotations

from dataclasses import replace

from byteprophet.errors import UserError
from byteprophet.job import Job, Model
from byteprophet.job.compression import ELEMENT_BYTES, PowerSgd
from byteprophet.job.owners import Owners
from byteprophet.job.strategy import BYTEPS
from byteprophet.job.strategy_file import Used
from byteprophet.replay.under import check_computation, check_owners, first_difference


def under_compression(job: Job, used: Used, path: str) -> Job:
    """The recorded ``job`` under the strategy ``used``; ``path`` names it in messages.

    Raises ``UserError`` if the strategy is for another model or other ranks, if the job has
    servers, or if workers would compute otherwise than in ``job``.
    """
    if job.strategy.runtime == BYTEPS:
        raise UserError(
            f"{path}: its runtime {used.strategy.runtime!r} has no servers, and the recorded job "
            "has servers: the links that it would use were not measured"
        )
    difference = first_difference(used.model, job.model)
    if difference:
        raise UserError(f"{path} is the strategy of another model: {difference}")
    check_computation(path, used, job)
    check_owners(path, used, job)
    return replace(job, strategy=used.strategy)


def travelling(job: Job, path: str) -> Job:
    """``job`` with a model whose gradients have the sizes of all-reduces that move as much.

    Raises ``UserError`` for factors of matrices, because a strategy does not know shapes.
    """
    compressed, parameters = job.strategy.compressor_of, []
    for each in job.model.parameters:
        own, size_bytes = compressed.get(each.name), each.size_bytes
        if isinstance(own, PowerSgd):
            raise UserError(
                f"{path}: what {own.type} sends of {each.name!r} depends on its shape, which a "
                "strategy does not have: it cannot be explained"
            )
        if own is not None:
            form = own.form((size_bytes // ELEMENT_BYTES,))
            size_bytes = form.size_bytes * (job.workers if form.gathered else 2) // 2
        parameters.append(replace(each, size_bytes=size_bytes))
    return replace(job, model=Model(tuple(parameters)))


def moved_bytes(job: Job) -> dict[str, int]:
    """What crosses each link of ``job`` in one iteration, in each direction, by the host's name."""
    sizes = dict(zip(job.model.names, job.model.sizes_bytes, strict=True))
    owners = Owners.of(job.strategy.owners, job.workers)
    shared = [sizes[name] for bucket in job.strategy.buckets for name in bucket.parameters]
    found = dict.fromkeys(range(job.workers), 0.0)
    for name, own in job.strategy.compressor_of.items():
        form = own.form((sizes[name] // ELEMENT_BYTES,))
        if form.gathered:
            for rank in found:
                found[rank] += form.sent_bytes(job.workers)
        else:
            shared.append(form.size_bytes)
    for size_bytes in shared:
        for rank, own_bytes in enumerate(owners.sizes(size_bytes)):
            found[rank] += size_bytes + (job.workers - 2) * own_bytes
    return {f"worker {rank}": round(moved) for rank, moved in found.items()}
