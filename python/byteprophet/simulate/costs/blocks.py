"""The time of a block's forward and backward pass, by what it is spent on.

Operators of one pass run behind each other on the GPU, and so do the collectives that they wait
for. Those on links that other transfers use meanwhile are kept apart, because they may take longer
than alone. The host launches operators and collectives ahead of the GPU. If it needs longer than
these, it is the limit: of each block, because it may wait for messages and in schedules; in a job
without compilation (``eager``) and without pipeline ranks, of the whole iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from typing import NamedTuple, TypeAlias

from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.compile.compiled import Compiled
from byteprophet.simulate.compile.steps import Collective, CollectiveKind, Compute, Phase, Step
from byteprophet.simulate.costs.collectives import CollectiveCosts, Transfer
from byteprophet.simulate.costs.reference_operators import name_of
from byteprophet.simulate.costs.roofline import Roofline, has_bias
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.operation.operator import WEIGHTED, Kind


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
    COPIES = "copies for collectives"
    SLOWED = "slowed by overlap"
    BUBBLE = "pipeline bubble"


_OF_PHASE = {
    Phase.FORWARD: Spent.FORWARD,
    Phase.RECOMPUTE: Spent.RECOMPUTE,
    Phase.BACKWARD: Spent.BACKWARD,
    Phase.WEIGHT: Spent.BACKWARD,
}


class Behind(NamedTuple):
    """What happens while kernels run. It takes time of its own where it is longer than these.

    Attributes:
        use: what it is.
        needs_ns: how long it takes.
        kernels_ns: how long the kernels take that hide it.
    """

    use: Spent
    needs_ns: float
    kernels_ns: float

    def longer_ns(self, factor: float) -> float:
        """Its own time if kernels take ``factor`` times as long."""
        return max(0.0, self.needs_ns - factor * self.kernels_ns)


@dataclass(frozen=True)
class PassTime:
    """The time of one pass. ``by_use`` adds up to ``time_ns``.

    ``behind``: what is hidden behind kernels, and how often the pass has it.
    """

    time_ns: int
    by_use: Mapping[Spent, int]
    behind: Mapping[Behind, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Waited:
    """A collective that operators wait for, on links that it shares with other transfers."""

    axes: tuple[str, ...]
    use: Spent
    transfer: Transfer


_COPIED = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
"""What DTensor gathers and scatters along the sequence. Its ranks get or give whole tensors, in
which the parts lie apart."""

_ELEMENT_BYTES = 2
_MERGED, _MERGED_BACKWARD = 33, 58
"""Bytes per element of its output that PyTorch's ring attention moves in each step of a pass: the
sum of results with 32 bits, weighted by their sums of exponentials; backward, sums of three
gradients, of which two go around. Mean over steps of all and of half the queries. Heads of keys are
as many as those of queries, as torchtitan repeats them. Counted in the source of PyTorch 2.6."""

Pass: TypeAlias = tuple[PassTime | Waited, ...]
"""A pass in order: work on the GPU, and collectives."""
Shared: TypeAlias = frozenset[bool]
"""Links with other transfers: those in nodes (False), those between nodes (True)."""
NOTHING_SHARED: Shared = frozenset()


@dataclass(frozen=True)
class BlockTime:
    """The passes of a block: forward, backward, and of that what can be delayed (``weight``)."""

    forward: Pass
    backward: Pass
    weight: Pass


class BlockCosts:
    """The times of compiled blocks on a cluster. Equal blocks are worked out once."""

    def __init__(
        self,
        cluster: Cluster,
        mesh: Mesh,
        *,
        fp8: bool = False,
        copies: bool = False,
        adds: float = 0.0,
        launch_blocking: bool = False,
        merges: bool = False,
        eager: bool = False,
    ) -> None:
        """Begin with nothing worked out.

        Args:
            cluster: where blocks run.
            mesh: the ranks.
            fp8: matrix products have 8-bit inputs.
            copies: tensors that collectives gather or scatter are copied besides.
            adds: how often the bytes of parameters are moved in a backward pass, to add gradients
                to those of earlier micro-batches by an operator of its own.
            launch_blocking: the host launches nothing while the GPU works.
            merges: results of the steps of ring attention are merged by operators of their own.
            eager: kernels of PyTorch without compilation count (``Strategy``).
        """
        self.cluster = cluster
        self._mesh = mesh
        self._launch_ns = cluster.gpu.launch_ns
        self._copies, self._adds = copies, adds
        self._blocking, self._merges, self._eager = launch_blocking, merges, eager
        self.runs_ahead = eager and not launch_blocking and mesh.pp == 1
        """Whether the host is the limit only if it needs longer for the whole iteration."""
        self.roofline = Roofline(
            cluster.gpu,
            mesh,
            cluster.shapes,
            operators=cluster.operators,
            kernels=cluster.kernels,
            fp8=fp8,
            eager=eager,
        )
        self.collectives = CollectiveCosts(cluster, mesh)
        self._done: dict[tuple[int, Shared], tuple[Compiled, BlockTime]] = {}

    def time(self, compiled: Compiled, shared: Shared = NOTHING_SHARED) -> BlockTime:
        """The passes of a block. Collectives on links that are shared are kept apart."""
        key = (id(compiled), shared)
        found = self._done.get(key)
        if found is None:
            late = [step for step in compiled.backward if step.phase is Phase.WEIGHT]
            early = [step for step in compiled.backward if step.phase is not Phase.WEIGHT]
            passes = (self.steps(steps, shared) for steps in (compiled.forward, early, late))
            self._done[key] = found = (compiled, BlockTime(*passes))
        return found[1]

    def host_ns(self, compiled: Compiled) -> float:
        """What the host needs to launch a forward and a backward pass."""
        return sum(
            self._passed(steps, NOTHING_SHARED)[2]
            for steps in (compiled.forward, compiled.backward)
        )

    def steps(self, steps: Iterable[Step], shared: Shared = NOTHING_SHARED) -> Pass:
        """The pass of steps behind each other."""
        parts, behind, _ = self._passed(steps, shared)
        first = next(part for part in parts if isinstance(part, dict))
        for one in behind:
            if one.longer_ns(1.0):
                first[one.use] = one.longer_ns(1.0)
        hidden = dict.fromkeys(behind, 1)
        return tuple(
            part if isinstance(part, Waited) else _rounded(part, hidden if part is first else {})
            for part in parts
            if part or len(parts) == 1
        )

    def _passed(
        self, steps: Iterable[Step], shared: Shared
    ) -> tuple[list[dict[Spent, float] | Waited], list[Behind], float]:
        """What is done in a pass, what passes behind kernels, and how long the host needs."""
        parts: list[dict[Spent, float] | Waited] = [{}]
        collectives_ns = 0.0
        launched = 0
        ring_ns = hidden_ns = 0.0
        for step in steps:
            last = parts[-1]
            if isinstance(last, Waited):
                parts.append(last := {})
            if isinstance(step, Collective):
                use, transfer = Spent(step.kind.value), self.collectives.transfer_of(step)
                if step.kind is CollectiveKind.SEND:
                    ring_ns += self.collectives.alone_ns(transfer)
                    continue
                time_ns = self.collectives.alone_ns(transfer)
                launched += 1
                collectives_ns += time_ns
                if self._copies and step.kind in _COPIED:
                    copied_ns = self.copy_ns(step.size_bytes)
                    last[Spent.COPIES] = last.get(Spent.COPIES, 0.0) + copied_ns
                if transfer.size_bytes and transfer.links & shared:
                    parts.append(Waited(step.axes, use, transfer))
                    continue
            else:
                use, time_ns = _OF_PHASE[step.phase], self.roofline.time_ns(step)
                launched += _eager_launches(step, adds=self._adds > 0) if self._eager else 0
                launched += _launches(step)
                hidden_ns += time_ns * self._beside_ring(step)
                time_ns += self._adding_ns(step)
                merging_ns = self._merging_ns(step)
                if merging_ns:
                    last[Spent.COPIES] = last.get(Spent.COPIES, 0.0) + merging_ns
            last[use] = last.get(use, 0.0) + time_ns
        host_ns = launched * self._launch_ns
        behind = [Behind(Spent.SEND, ring_ns, hidden_ns)]
        if not self.runs_ahead:
            works = (part for part in parts if isinstance(part, dict))
            kernels_ns = sum(ns for work in works for use, ns in work.items() if use in KERNELS)
            launches = (host_ns, 0.0) if self._blocking else (host_ns - collectives_ns, kernels_ns)
            behind.append(Behind(Spent.LAUNCH, *launches))
        return parts, [one for one in behind if one.needs_ns > 0], host_ns

    def copy_ns(self, size_bytes: float) -> float:
        """The time of reading and writing so many bytes once."""
        return self.roofline.memory_ns(2 * size_bytes)

    def update_ns(self, size_bytes: float) -> float:
        """The time of a step of Adam that reads and writes so many bytes."""
        gpu, measured = self.cluster.gpu, self.cluster.kernels.update_efficiency
        return (
            self.roofline.memory_ns(size_bytes)
            * gpu.memory_efficiency
            / (measured or gpu.memory_efficiency)
        )

    def _adding_ns(self, step: Compute) -> float:
        """The time of adding the gradients of an operator's parameters to those that are there."""
        if not self._adds or not makes_gradients(step):
            return 0.0
        return self.roofline.memory_ns(self._adds * self.roofline.parameter_bytes(step))

    def _merging_ns(self, step: Compute) -> float:
        """The time in which PyTorch merges the results of the steps of ring attention."""
        ranks, operator = self._mesh.cp, step.operator
        if not self._merges or operator.kind is not Kind.ATTENTION:
            return 0.0
        backward = step.phase is Phase.BACKWARD
        moved = ranks * _MERGED_BACKWARD if backward else (ranks - 1) * _MERGED
        return self.roofline.memory_ns(moved * self.roofline.output_bytes(step) / _ELEMENT_BYTES)

    def _beside_ring(self, step: Compute) -> float:
        """The part of an operator's time in which keys and values may be on their way.

        Attention has as many steps as there are ranks, and what the next one needs comes meanwhile.
        PyTorch's has no such time if it is compiled: in the graph that torch.compile gets, each
        functional collective is followed by its ``wait_tensor``, and neither Inductor's order nor
        its pass for locality moves one away from the other.
        """
        if self._merges and not self._eager:
            return 0.0
        ranks = self._mesh.cp
        return (ranks - 1) / ranks if step.operator.kind is Kind.ATTENTION else 0.0


def _rounded(by_use: Mapping[Spent, float], behind: Mapping[Behind, int]) -> PassTime:
    rounded = {use: round(time_ns) for use, time_ns in by_use.items()}
    return PassTime(sum(rounded.values()), rounded, behind)


def _launches(step: Compute) -> int:
    """How many kernels the host launches. A matrix product of two activations has two gradients."""
    if step.operator.kind is Kind.VIEW:
        return 0
    two = step.operator.kind is Kind.MATMUL and not step.operator.parameters
    return 2 if two and step.phase is Phase.BACKWARD else 1


def makes_gradients(step: Compute) -> bool:
    """Whether a step makes the gradients of an operator's parameters."""
    last = Phase.WEIGHT if step.operator.kind in WEIGHTED else Phase.BACKWARD
    return step.phase is last


def _eager_launches(step: Compute, *, adds: bool) -> int:
    """What the host launches besides, without compilation.

    A bias is added by an operator of its own to a convolution, and to a product that may be a
    partial sum, and its gradient is a sum. Gradients of several parts of a tensor are copied. If
    gradients are added up (``adds``), each parameter has an operator for that.
    """
    operator, phase = step.operator, step.phase
    more = len(operator.trained) if adds and makes_gradients(step) else 0
    if operator.kind is Kind.VIEW:
        parts = len(operator.outputs)
        return parts if parts > 1 and phase is Phase.BACKWARD else 0
    if has_bias(operator):
        forward = phase in (Phase.FORWARD, Phase.RECOMPUTE)
        return more + (phase is Phase.WEIGHT or (forward and operator.kind is Kind.CONVOLUTION))
    return more + (operator.kind is Kind.MEMORY and name_of(operator) == "biased add")


def total(times: Iterable[PassTime]) -> PassTime:
    """Several pieces of work behind each other."""
    by_use: dict[Spent, int] = {}
    behind: dict[Behind, int] = {}
    for time in times:
        for use, time_ns in time.by_use.items():
            by_use[use] = by_use.get(use, 0) + time_ns
        for one, count in time.behind.items():
            behind[one] = behind.get(one, 0) + count
    return PassTime(sum(by_use.values()), by_use, behind)


KERNELS = (
    Spent.FORWARD,
    Spent.BACKWARD,
    Spent.RECOMPUTE,
    Spent.OPTIMIZER,
    Spent.COPIES,
)


def slower(time: PassTime, factor: float) -> PassTime:
    """``time`` on a GPU whose kernels take ``factor`` times as long, and hide more behind them."""
    if factor == 1:
        return time
    by_use = {
        use: round(time_ns * factor) if use in KERNELS else time_ns
        for use, time_ns in time.by_use.items()
    }
    for use in {one.use for one in time.behind}:
        changed_ns = sum(
            count * (one.longer_ns(factor) - one.longer_ns(1.0))
            for one, count in time.behind.items()
            if one.use is use
        )
        by_use[use] = max(0, round(by_use.get(use, 0) + changed_ns))
    return PassTime(sum(by_use.values()), by_use)


def joined(passes: Iterable[Pass]) -> Pass:
    """Several passes behind each other. What is on the GPU without a break is one."""
    parts = (part for one in passes for part in one)
    found: list[PassTime | Waited] = []
    for waited, group in groupby(parts, lambda part: isinstance(part, Waited)):
        here = list(group)
        found += here if waited else [total(one for one in here if isinstance(one, PassTime))]
    return tuple(found) or (PassTime(0, {}),)
