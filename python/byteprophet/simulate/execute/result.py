"""What a simulated iteration takes: time by use, and memory per pipeline rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from byteprophet.replay import Replayed
from byteprophet.simulate.compile.program import Program
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.blocks import BlockCosts, Spent
from byteprophet.simulate.execute.gradients import Held, Sizes
from byteprophet.simulate.execute.job_graph import JobGraph
from byteprophet.simulate.execute.ranks import RankRecord
from byteprophet.simulate.execute.sharding import unsharded_bytes
from byteprophet.simulate.execute.tables import Tables
from byteprophet.simulate.tree.strategy import PRECISIONS, Strategy


@dataclass(frozen=True)
class RankMemory:
    """The peak memory of each rank of one pipeline rank, in bytes."""

    parameters: int
    gradients: int
    optimizer_state: int
    activations: int
    transient: int
    reserved: int

    @property
    def total(self) -> int:
        """All of it."""
        return (
            self.parameters
            + self.gradients
            + self.optimizer_state
            + self.activations
            + self.transient
            + self.reserved
        )


@dataclass(frozen=True)
class Simulated:
    """The result of a simulation.

    Attributes:
        program: what was simulated.
        gpus: the number of GPUs.
        iteration_ns: the time of an iteration.
        costs: the times of its operators and collectives.
        memory_limit_bytes: the memory of a GPU.
        flops_per_s: the peak of a GPU.
        job: the graph that was replayed.
        replayed: its replay.
    """

    program: Program
    gpus: int
    iteration_ns: int
    costs: BlockCosts = field(repr=False)
    memory_limit_bytes: int
    flops_per_s: int
    job: JobGraph = field(repr=False)
    replayed: Replayed = field(repr=False)

    @cached_property
    def by_use(self) -> Mapping[Spent, int]:
        """What the time is spent on, averaged over pipeline ranks; adds up to ``iteration_ns``."""
        return by_use(self.replayed, self.job.ranks)

    @cached_property
    def memory(self) -> tuple[RankMemory, ...]:
        """The peak memory of each pipeline rank."""
        pools = [int(self.replayed.peak_bytes[record.pool]) for record in self.job.ranks]
        return memory_of(self.program, self.costs, pools)

    @property
    def samples_per_s(self) -> float:
        """Samples of all ranks per second."""
        strategy = self.program.strategy
        return strategy.samples * strategy.micro_batches / (self.iteration_ns / 1e9)

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all ranks per second."""
        return self.samples_per_s * self.program.model.tokens

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: FLOPs without recomputation over the GPUs' peak."""
        flops = self.program.model.flops() * self.program.strategy.micro_batches
        return flops / (self.iteration_ns / 1e9) / (self.flops_per_s * self.gpus)

    @property
    def fits(self) -> bool:
        """Whether all ranks have enough memory."""
        return max(memory.total for memory in self.memory) <= self.memory_limit_bytes

    def as_json(self) -> dict[str, Any]:
        """The figures as plain data."""
        return {
            "schema": 1,
            "model": self.program.model.name,
            "parameters": self.program.model.parameters(),
            "gpus": self.gpus,
            "iteration_ns": self.iteration_ns,
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "by_use_ns": {use.value: time_ns for use, time_ns in self.by_use.items()},
            "memory_bytes": [{**vars(memory), "total": memory.total} for memory in self.memory],
            "memory_limit_bytes": self.memory_limit_bytes,
            "fits": self.fits,
            "operations": len(self.job.graph),
        }


def by_use(replayed: Replayed, ranks: Sequence[RankRecord]) -> dict[Spent, int]:
    """What the time is spent on, averaged over pipeline ranks. Adds up to the makespan."""
    sums: dict[Spent, int] = {}
    for record in ranks:
        for use, time_ns in use_of_rank(replayed, record).items():
            sums[use] = sums.get(use, 0) + time_ns
    average = {use: round(time_ns / len(ranks)) for use, time_ns in sums.items()}
    average[Spent.BUBBLE] = replayed.makespan_ns - sum(
        time_ns for use, time_ns in average.items() if use is not Spent.BUBBLE
    )
    return average


def use_of_rank(replayed: Replayed, record: RankRecord) -> dict[Spent, int]:
    """What the time of one pipeline rank is spent on. Adds up to the makespan."""
    start_ns, end_ns = replayed.start_ns, replayed.end_ns
    found = dict.fromkeys(Spent, 0)
    *computed, update = record.computed
    ended_ns = end_ns[computed]
    gaps_ns = start_ns[computed] - np.concatenate(([0], ended_ns[:-1]))
    late_ns = 0
    for flow, use, place in record.waited:
        moved_ns = int(end_ns[flow] - start_ns[flow])
        found[use] += moved_ns
        if place < len(computed):
            gaps_ns[place] -= moved_ns
        else:
            late_ns += moved_ns
    before = {place: flow for flow, _, place in reversed(record.waited)}
    for at in np.flatnonzero(gaps_ns).tolist():
        gap_ns = int(gaps_ns[at])
        first = before.get(at, computed[at])
        waits = record.waits.get(computed[at]) or record.waits.get(first, [(-1, Spent.BUBBLE)])
        flow, use = max(waits, key=lambda wait: int(end_ns[wait[0]]))
        moved_ns = int(end_ns[flow] - start_ns[flow]) if flow >= 0 else 0
        # A rank that waits for activations waits for its peer first, then for the transfer.
        waited_ns = min(gap_ns, moved_ns) if use is Spent.SEND else gap_ns
        found[use] += waited_ns
        found[Spent.BUBBLE] += gap_ns - waited_ns
    now_ns = int(ended_ns[-1]) + late_ns
    for flow, use in sorted(record.synchronised, key=lambda item: int(end_ns[item[0]])):
        if end_ns[flow] > now_ns:
            began_ns = max(now_ns, int(start_ns[flow]))
            found[Spent.BUBBLE] += began_ns - now_ns
            now_ns = int(end_ns[flow])
            found[use] += now_ns - began_ns
    found[Spent.BUBBLE] += int(start_ns[update]) - now_ns
    now_ns = int(end_ns[update])
    for flow in record.gathered:
        found[Spent.ALL_GATHER] += int(end_ns[flow]) - now_ns
        now_ns = int(end_ns[flow])
    found[Spent.BUBBLE] += replayed.makespan_ns - now_ns
    passes = {id(spent): spent for spent in record.spent}
    for key, count in Counter(map(id, record.spent)).items():
        for use, time_ns in passes[key].by_use.items():
            found[use] += time_ns * count
    took_ns = int((end_ns[record.computed] - start_ns[record.computed]).sum())
    found[Spent.SLOWED] += took_ns - sum(spent.time_ns for spent in record.spent)
    return found


def kept_bytes(whose: Held, strategy: Strategy) -> tuple[float, float, float]:
    """The bytes on a rank of parameters, of their gradients, and of the optimizer's state."""

    def kept(sizes: Sizes, least_zero: int) -> float:
        parts = strategy.mesh.parts if strategy.zero >= least_zero else lambda _: 1
        return sum(count / parts(axes) for axes, count in sizes)

    elements = kept(whose.all, 3), kept(whose.trained, 2), kept(whose.trained, 1)
    precision = PRECISIONS[strategy.precision]
    sizes = precision.parameter_bytes, precision.gradient_bytes, precision.state_bytes
    parameters, gradients, state = (a * b for a, b in zip(elements, sizes, strict=True))
    return parameters, gradients, state


def memory_of(
    program: Program, costs: BlockCosts, activations: Sequence[int]
) -> tuple[RankMemory, ...]:
    """The peak memory of each pipeline rank. ``activations``: the peak of its memory pool."""
    tables = Tables(program, costs, folded=True)
    strategy = program.strategy
    found = []
    for pp_rank in range(strategy.mesh.pp):
        parameters, gradients, state = kept_bytes(tables.held(pp_rank), strategy)
        stages = program.stages[pp_rank :: strategy.mesh.pp]
        transient = max(stage.transient_bytes for stage in stages)
        if strategy.zero >= 2:
            gathered = tables.bucket_bytes(pp_rank, CollectiveKind.ALL_GATHER)
            reduced = tables.bucket_bytes(pp_rank, tables.reduction)
            transient += unsharded_bytes(gathered, reduced, strategy)
        found.append(
            RankMemory(
                parameters=round(parameters),
                gradients=round(gradients),
                optimizer_state=round(state),
                activations=int(activations[pp_rank]),
                transient=transient,
                reserved=costs.cluster.gpu.reserved_bytes,
            )
        )
    return tuple(found)
