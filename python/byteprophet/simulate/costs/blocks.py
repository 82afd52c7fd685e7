"""The time of a block's forward and backward pass, by what it is spent on.

Operators of one pass run behind each other on the GPU, and so do the collectives that they wait
for. The host launches both ahead of the GPU. If it needs longer than these, it is the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.compile.module import Compiled
from byteprophet.simulate.compile.steps import Collective, Compute, Phase, Step
from byteprophet.simulate.costs.collectives import CollectiveCosts
from byteprophet.simulate.costs.roofline import Roofline
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.operation.operator import Kind


class Spent(str, Enum):
    """What the time of an iteration is spent on."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    LAUNCH = "waits for the host"
    OPTIMIZER = "optimizer"
    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    SEND = "point-to-point"
    BUBBLE = "pipeline bubble"


_OF_PHASE = {
    Phase.FORWARD: Spent.FORWARD,
    Phase.RECOMPUTE: Spent.RECOMPUTE,
    Phase.BACKWARD: Spent.BACKWARD,
    Phase.WEIGHT: Spent.BACKWARD,
}


@dataclass(frozen=True)
class PassTime:
    """The time of one pass. ``by_use`` adds up to ``time_ns``."""

    time_ns: int
    by_use: Mapping[Spent, int]


@dataclass(frozen=True)
class BlockTime:
    """The times of a block: forward, backward, and of that what can be delayed (``weight``)."""

    forward: PassTime
    backward: PassTime
    weight: PassTime


class BlockCosts:
    """The times of compiled blocks on a cluster. Equal blocks are worked out once."""

    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        self.cluster = cluster
        self._launch_ns = cluster.gpu.launch_ns
        self.roofline = Roofline(cluster.gpu, mesh, cluster.shapes)
        self.collectives = CollectiveCosts(cluster, mesh)
        self._done: dict[int, tuple[Compiled, BlockTime]] = {}

    def time(self, compiled: Compiled) -> BlockTime:
        """The times of a block."""
        found = self._done.get(id(compiled))
        if found is None:
            late = [step for step in compiled.backward if step.phase is Phase.WEIGHT]
            early = [step for step in compiled.backward if step.phase is not Phase.WEIGHT]
            times = BlockTime(self.steps(compiled.forward), self.steps(early), self.steps(late))
            self._done[id(compiled)] = found = (compiled, times)
        return found[1]

    def steps(self, steps: Iterable[Step]) -> PassTime:
        """The time of steps behind each other."""
        by_use: dict[Spent, float] = {}
        busy = 0.0
        launched = 0
        for step in steps:
            if isinstance(step, Collective):
                use, time_ns = Spent(step.kind.value), self.collectives.time_ns(step)
            else:
                use, time_ns = _OF_PHASE[step.phase], self.roofline.time_ns(step)
                launched += _launches(step)
            busy += time_ns
            by_use[use] = by_use.get(use, 0.0) + time_ns
        waited = launched * self._launch_ns - busy
        if waited > 0:
            by_use[Spent.LAUNCH] = waited
        rounded = {use: round(time_ns) for use, time_ns in by_use.items()}
        return PassTime(sum(rounded.values()), rounded)


def _launches(step: Compute) -> int:
    """How many kernels the host launches. A matrix product of two activations has two gradients."""
    if step.operator.kind is Kind.VIEW:
        return 0
    two = step.operator.kind is Kind.MATMUL and not step.operator.parameters
    return 2 if two and step.phase is Phase.BACKWARD else 1


def total(times: Iterable[PassTime]) -> PassTime:
    """Several passes behind each other."""
    by_use: dict[Spent, int] = {}
    for time in times:
        for use, time_ns in time.by_use.items():
            by_use[use] = by_use.get(use, 0) + time_ns
    return PassTime(sum(by_use.values()), by_use)
