"""What a strategy makes of a recorded job: iteration time, distance to the bound, load per link.

The job is replayed under the strategy. The loads are the bytes of the flows of its last iteration,
link by link, so they are what the replay moved and not a formula of its own. A job of two
transports cannot be replayed yet: its loads are sums (``routed.py``), and no time is predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from byteprophet.bound import bound_ns
from byteprophet.graph import Connection, Graph
from byteprophet.job import Job
from byteprophet.measure.servers import Measured
from byteprophet.optimize.critical_path import shares
from byteprophet.optimize.outcome import replayed
from byteprophet.replay.predict import kind_of, warmup_of
from byteprophet.strategy.routed import moved_bytes


@dataclass(frozen=True)
class Load:
    """The bytes that cross a link in one iteration, and how long they take it; 0: no limit."""

    link: str
    size_bytes: int
    busy_ns: int


@dataclass(frozen=True)
class Explanation:
    """``loads``: the busiest link first. ``path``: the critical path's parts, as shares of it.

    ``compute_ns``: forward and backward of the worker that computes longest. ``replay_error``: of
    the recorded job, unchanged: a prediction cannot be expected to be better. It is None, as is
    ``iteration_ns``, of a job of two transports, which cannot be replayed yet.
    """

    iteration_ns: int | None
    bound_ns: int
    compute_ns: int
    loads: tuple[Load, ...]
    path: Mapping[str, float]
    replay_error: float | None

    @property
    def limit(self) -> str:
        """The link, or the computation, below whose time no order of transfers comes."""
        busiest = self.loads[0] if self.loads else None
        if busiest is None or busiest.busy_ns <= self.compute_ns:
            return "computation"
        return busiest.link

    def as_json(self) -> dict[str, Any]:
        """As ``byteprophet strategy explain --json`` prints it (docs/formats.md)."""
        return {
            "schema": 1,
            "iteration_ns": self.iteration_ns,
            "bound_ns": self.bound_ns,
            "compute_ns": self.compute_ns,
            "replay_error": self.replay_error,
            "limit": self.limit,
            "links": [
                {"link": load.link, "size_bytes": load.size_bytes, "busy_ns": load.busy_ns}
                for load in self.loads
            ],
            "critical_path": dict(self.path),
        }


def explain(measured: Measured, job: Job) -> Explanation:
    """Explain ``job``: the ``measured`` one, or the same one under another strategy."""
    _, _, replay_error = replayed(measured)
    played = kind_of(job).replay(job)
    return Explanation(
        iteration_ns=int(np.median(played.iterations_ns[warmup_of(measured) :])),
        bound_ns=bound_ns(job),
        compute_ns=compute_ns(job),
        loads=loads(played.replayed.graph),
        path=shares(played.replayed),
        replay_error=replay_error,
    )


def explain_routed(job: Job) -> Explanation:
    """Explain ``job``, which has two transports, without a replay."""
    found = []
    hosts = {
        **{f"worker {rank}": host for rank, host in enumerate(job.cluster.workers)},
        **{f"server {server}": host for server, host in enumerate(job.cluster.servers)},
    }
    for name, size_bytes in moved_bytes(job).items():
        host = hosts[name]
        for way, rate_bps in (("up", host.up_bps), ("down", host.down_bps)):
            busy_ns = round(size_bytes * 8e9 / rate_bps) if rate_bps else 0
            found.append(Load(f"{name} {way}", size_bytes, busy_ns))
    return Explanation(
        iteration_ns=None,
        bound_ns=bound_ns(job),
        compute_ns=compute_ns(job),
        loads=_busiest_first(found),
        path={},
        replay_error=None,
    )


def compute_ns(job: Job) -> int:
    """Forward and backward of the worker of ``job`` that computes longest, in ns."""
    return max(
        int(forward_ns.sum()) + backward_ns
        for forward_ns, _, backward_ns, _ in map(job.times.medians, range(job.workers))
    )


def _busiest_first(found: Iterable[Load]) -> tuple[Load, ...]:
    return tuple(sorted(found, key=lambda load: (-load.busy_ns, -load.size_bytes)))


def loads(graph: Graph) -> tuple[Load, ...]:
    """The loads of all links in the last iteration of ``graph``, the busiest first."""
    last = graph.labels.iteration == graph.labels.iteration.max()
    moved = np.zeros(len(graph.links), np.int64)
    bytes_of = np.bincount(
        graph.device[last & (graph.device >= 0)],
        graph.size_bytes[last & (graph.device >= 0)],
        len(graph.devices),
    )
    for device, size_bytes in zip(graph.devices, bytes_of, strict=True):
        if isinstance(device, Connection):
            for link in device.route:
                moved[link] += int(size_bytes)
    found = [
        Load(link.name, int(size), round(int(size) * 8e9 / link.capacity_bps))
        if link.capacity_bps
        else Load(link.name, int(size), 0)
        for link, size in zip(graph.links, moved, strict=True)
        if size
    ]
    return _busiest_first(found)
