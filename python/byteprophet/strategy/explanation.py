"""What a strategy makes of a recorded job: iteration time, distance to the bound, load per link.

The job is replayed under the strategy. The loads are the bytes of the flows of its last iteration,
link by link, so they are what the replay moved and not a formula of its own. If an iteration is
several of the script's steps, all numbers are of one step.

The interval holds nine in ten of the replayed iterations. The error of the recorded job's replay
widens it, and so does a transport whose costs were not recorded (``job/assumed_costs.py``), or that
of the replay of the run that tells them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from byteprophet.bound import bound_of_predicted_ns
from byteprophet.graph import Connection
from byteprophet.job import Job
from byteprophet.job.as_executed import as_executed
from byteprophet.job.assumed_costs import UNSURE
from byteprophet.job.predicted import Predicted
from byteprophet.job.strategy import BYTEPS
from byteprophet.measure.servers import Measured
from byteprophet.optimize.critical_path import shares
from byteprophet.optimize.outcome import replayed
from byteprophet.order_statistics import median, quantile
from byteprophet.replay.kinds import ReplayedJob
from byteprophet.replay.predict import HIGH, LOW, kind_of, warmup_in
from byteprophet.strategy.routed import on_its_share

_OF_HOSTS = (" up", " down")
"""How names of hosts' links end. Other links are cores, and what the mesh may use of a host's."""


@dataclass(frozen=True)
class Load:
    """The bytes that cross a link in a step, and how long they take it; 0: no limit."""

    link: str
    size_bytes: int
    busy_ns: int


@dataclass(frozen=True)
class Explanation:
    """``loads``: the busiest link first. ``path``: the critical path's parts, as shares of it.

    ``compute_ns``: a step of the worker that computes longest, without waits. ``replay_error``: of
    the recorded job, unchanged: a prediction cannot be expected to be better. ``assumed``: the
    transports of the strategy whose costs were not recorded, in words; "": there is none.

    ``predicted``: as a strategy's file has it.
    """

    predicted: Predicted
    bound_ns: int
    compute_ns: int
    loads: tuple[Load, ...]
    path: Mapping[str, float]
    replay_error: float
    assumed: str = ""

    @property
    def limit(self) -> str:
        """The link, or the computation, below whose time no order of transfers comes."""
        busiest = self.loads[0] if self.loads else None
        if busiest is None or busiest.busy_ns <= self.compute_ns:
            return "computation"
        return busiest.link

    def as_json(self) -> dict[str, Any]:
        """As ``byteprophet strategy explain --json`` prints it (docs/formats.md)."""
        found = self.predicted
        return {
            "schema": 1,
            "iteration_ns": found.iteration_ns,
            "interval_ns": list(found.interval_ns),
            "bound_ns": self.bound_ns,
            "compute_ns": self.compute_ns,
            "replay_error": self.replay_error,
            "assumed": self.assumed or None,
            "limit": self.limit,
            "links": [
                {"link": load.link, "size_bytes": load.size_bytes, "busy_ns": load.busy_ns}
                for load in self.loads
            ],
            "critical_path": dict(self.path),
        }


def explain(measured: Measured, job: Job, other: Measured | None = None) -> Explanation:
    """Explain ``job``: the ``measured`` one, or the same one under another strategy.

    ``other``: where ``job`` has two transports, what tells the costs of the one that was not
    recorded.
    """
    _, _, replay_error = replayed(measured)
    missing = unrecorded(job, measured.job)
    assumed = missing if other is None else ()
    unsure = abs(replay_error) + UNSURE * len(assumed)
    if missing and other is not None:
        unsure += abs(replayed(other)[2])
    played = kind_of(job).replay(on_its_share(job) if missing else job)
    times_ns = played.iterations_ns[warmup_in(job, measured) :]
    iteration_ns = int(median(times_ns))
    least_ns = bound_of_predicted_ns(job, iteration_ns, warmup_in(job, measured))
    return Explanation(
        predicted=Predicted(iteration_ns, interval_of(times_ns, unsure), least_ns),
        bound_ns=least_ns,
        compute_ns=compute_ns(job),
        loads=loads(played),
        path=shares(played.replayed),
        replay_error=replay_error,
        assumed=" and ".join(assumed),
    )


def unrecorded(job: Job, recorded: Job | None) -> tuple[str, ...]:
    """The transports of ``job`` whose costs ``recorded`` does not tell, in words; None: of none."""
    known = () if recorded is None else _transports(recorded)
    return tuple(each for each in _transports(job) if each not in known)


def _transports(job: Job) -> tuple[str, ...]:
    served = ("servers",) if job.policy is not None else ()
    return served if job.strategy.runtime == BYTEPS else (*served, "the mesh")


def interval_of(times_ns: npt.NDArray[Any], unsure: float) -> tuple[int, int]:
    """Where nine in ten iterations are; ``unsure``: a share by which all may be off."""
    low_ns, high_ns = quantile(times_ns, LOW), quantile(times_ns, HIGH)
    return max(0, int(low_ns * (1 - unsure))), int(high_ns * (1 + unsure))


def compute_ns(job: Job) -> int:
    """What the worker of ``job`` that computes longest computes in a step, in ns."""
    job = as_executed(job)
    iteration_ns = max(
        int(forward_ns.sum()) + backward_ns
        for forward_ns, _, backward_ns, _ in map(job.times.medians, range(job.workers))
    )
    return iteration_ns // job.strategy.steps


def loads(played: ReplayedJob) -> tuple[Load, ...]:
    """The loads of all hosts' links in a step of the last iteration, the busiest first."""
    graph = played.replayed.graph
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
    return _busiest_first(
        Load(link.name, size, round(size * 8e9 / link.capacity_bps) if link.capacity_bps else 0)
        for link, size in zip(graph.links, (moved // played.steps).tolist(), strict=True)
        if size and link.name.endswith(_OF_HOSTS)
    )


def _busiest_first(found: Iterable[Load]) -> tuple[Load, ...]:
    return tuple(sorted(found, key=lambda load: (-load.busy_ns, -load.size_bytes)))
