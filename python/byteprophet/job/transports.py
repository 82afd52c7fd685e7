"""What each of two transports carries, as a job of that transport alone.

A job of two transports (``routes.py``) exchanges a gradient, or a piece of one, by servers or over
the mesh. Here, what goes one way becomes a job whose parameters are what travels as one tensor: a
gradient, a piece, or a buffer that small gradients share on their way to servers. So all that is
known of jobs of one transport (partitions, servers, shards, loads) holds for each half.

BytePS numbers tensors in the order in which the front declares them, and its hash of these numbers
finds the servers of what has no keys: first come the parts, parameter by parameter, then buffers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from byteprophet.job.cluster import Cluster
from byteprophet.job.job import Job
from byteprophet.job.model import Model, Parameter
from byteprophet.job.routes import MESH, SERVERS, Part, in_order, parts_of
from byteprophet.job.shared_buffers import messages
from byteprophet.job.strategy import BYTEPS, Strategy
from byteprophet.job.times import Times
from byteprophet.runtime_settings import DEFAULT_FUSION_BYTES
from byteprophet.tensor_names import buffer_text

_KIND = "gradient"


@dataclass(frozen=True)
class Carried:
    """What one transport carries. The times of ``job`` are 0.

    ``parameters``: for each tensor of ``job``, the places of the parameters in the whole job's
    model whose gradients it has, or has a piece of.
    """

    job: Job
    parameters: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Small:
    size_bytes: int
    kind: str = _KIND


def served(job: Job, buffer_bytes: int = DEFAULT_FUSION_BYTES) -> Carried:
    """What servers sum of ``job``. Small gradients share buffers of up to ``buffer_bytes``."""
    parts = _parts(job, SERVERS)
    known = {part.name: part for part in parts}
    sizes = {part.name: part.size_bytes for part in parts}
    small = {name: _Small(size) for name, size in sizes.items() if size <= buffer_bytes}
    held = messages(list(sizes), sizes, small, buffer_bytes)
    declared = {part.name: number for number, part in enumerate(_as_declared(parts))}
    parameters: list[Parameter] = []
    numbers: list[int] = []
    places: list[tuple[int, ...]] = []
    buffers = 0
    for members in held:
        name, number = members[0], declared[members[0]]
        if len(members) > 1:
            name, number = buffer_text(members), len(parts) + buffers
            buffers += 1
        parameters.append(Parameter(name, sum(sizes[each] for each in members)))
        numbers.append(number)
        places.append(tuple(job.model.places[known[each].tensor] for each in members))
    strategy = Strategy(
        BYTEPS,
        partition_bytes=job.strategy.partition_bytes,
        keys=job.strategy.keys,
        numbers=tuple(numbers),
        reduce_dtype=job.strategy.reduce_dtype,
    )
    model = Model(tuple(parameters))
    alone = Job(model, _none(job, len(model)), job.cluster, strategy, job.policy)
    return Carried(alone, tuple(places))


def meshed(job: Job) -> Carried:
    """What the ranks of ``job`` all-reduce among themselves."""
    parts = _parts(job, MESH)
    model = Model(tuple(Parameter(part.name, part.size_bytes) for part in parts))
    strategy = Strategy(
        job.strategy.mesh,
        job.strategy.buckets,
        owners=job.strategy.owners,
        reduce_dtype=job.strategy.reduce_dtype,
    )
    cluster = Cluster(job.cluster.workers, costs=job.cluster.mesh_costs or job.cluster.costs)
    alone = Job(model, _none(job, len(model)), cluster, strategy)
    return Carried(alone, tuple((job.model.places[part.tensor],) for part in parts))


def share_of_servers(job: Job) -> float:
    """The part of what crosses a worker's link that goes to servers, if ranks own equally much."""
    bytes_of = {way: sum(part.size_bytes for part in _parts(job, way)) for way in (SERVERS, MESH)}
    moved = bytes_of[MESH] * 2 * (job.workers - 1) / job.workers
    return bytes_of[SERVERS] / max(1.0, bytes_of[SERVERS] + moved)


def _parts(job: Job, way: str) -> list[Part]:
    return [part for part in parts_of(in_order(job.model, job.strategy.routes)) if part.way == way]


def _as_declared(parts: list[Part]) -> list[Part]:
    """The front declares gradients by the names of their parameters."""
    return [parts[n] for n in sorted(range(len(parts)), key=lambda n: (parts[n].tensor, n))]


def _none(job: Job, tensors: int) -> Times:
    shape = (job.workers, job.iterations, tensors)
    none = np.broadcast_to(np.zeros((), np.int64), shape)
    whole = np.broadcast_to(np.zeros((), np.int64), shape[:2])
    return replace(job.times, forward_ns=none, ready_ns=none, backward_ns=whole, update_ns=none)
