"""What takes the memory of a pipeline rank at its peak, and when it is exceeded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from byteprophet.simulate.compile.program import Stage, saved_by
from byteprophet.simulate.compile.schedules import Act
from byteprophet.simulate.execute.gradients import held
from byteprophet.simulate.execute.result import RankMemory, Simulated, kept_bytes
from byteprophet.simulate.explain.operations import What
from byteprophet.simulate.operation.layout import Layout

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Allocation:
    """Memory at the peak. ``note``: how often there is one of it."""

    part: str
    what: str
    size_bytes: int
    note: str = ""


@dataclass(frozen=True)
class Use:
    """The memory of a pipeline rank over time.

    Attributes:
        times_ns: when it changes, from 0 on.
        activations: the activations that are kept from each of these times on, in bytes.
        fixed_bytes: everything else.
    """

    times_ns: Int64Array
    activations: Int64Array
    fixed_bytes: int

    @property
    def peak_ns(self) -> int:
        """When most activations are kept."""
        return int(self.times_ns[np.argmax(self.activations)])


@dataclass(frozen=True)
class Overflow:
    """What does not fit.

    Attributes:
        rank: the pipeline rank.
        gpus: the numbers of its first and its last GPU.
        missing_bytes: how much more than a GPU has is needed at the peak.
        since_ns: when the memory is exceeded first; None: before the first operation.
        during: what the rank does then.
    """

    rank: int
    gpus: tuple[int, int]
    missing_bytes: int
    since_ns: int | None
    during: str


def gpus_of(result: Simulated, rank: int) -> tuple[int, int]:
    """The first and the last GPU of a pipeline rank."""
    count = result.gpus // result.program.strategy.mesh.pp
    return rank * count, (rank + 1) * count - 1


def largest_rank(result: Simulated) -> int:
    """The pipeline rank that needs the most memory."""
    totals = [memory.total for memory in result.memory]
    return totals.index(max(totals))


def use_over_time(result: Simulated, rank: int) -> Use:
    """The memory of a pipeline rank over time."""
    memory, replayed = result.job.graph.memory, result.replayed
    own = memory.pool == result.job.ranks[rank].pool
    times_ns = np.concatenate([[0], replayed.end_ns[own], replayed.start_ns[own]])
    changes = np.concatenate([[0], -memory.freed_bytes[own], memory.allocated_bytes[own]])
    order = np.argsort(times_ns, kind="stable")  # what ends at a time frees memory first
    kept = np.cumsum(changes[order])
    last = np.append(np.flatnonzero(np.diff(times_ns[order])), len(order) - 1)
    fixed = result.memory[rank].total - result.memory[rank].activations
    return Use(times_ns[order][last], kept[last], fixed)


def overflow(result: Simulated, operations: dict[int, What]) -> Overflow | None:
    """What does not fit on the rank that needs the most memory; None if all fits."""
    rank = largest_rank(result)
    use, limit = use_over_time(result, rank), result.memory_limit_bytes
    missing = result.memory[rank].total - limit
    if missing <= 0:
        return None
    gpus = gpus_of(result, rank)
    if use.fixed_bytes > limit:
        return Overflow(rank, gpus, missing, None, "")
    since_ns = int(use.times_ns[np.argmax(use.activations + use.fixed_bytes > limit)])
    computed = result.job.ranks[rank].computed
    at = int(np.searchsorted(result.replayed.start_ns[computed], since_ns, side="right")) - 1
    what = operations[computed[at]]
    return Overflow(rank, gpus, missing, since_ns, f"{what.act} of {what.of}")


def allocations(result: Simulated, rank: int) -> list[Allocation]:
    """What a pipeline rank keeps at its peak, the largest first. Adds up to its total."""
    strategy = result.program.strategy
    stages = result.program.stages[rank :: strategy.mesh.pp]
    sizes: dict[tuple[str, str], float] = defaultdict(float)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for stage in stages:
        for block in stage.blocks:
            kept = kept_bytes(held([block], strategy.mesh), strategy)
            for part, size in zip(
                ("parameters", "gradients", "optimizer state"), kept, strict=True
            ):
                sizes[part, _alike(block.path)] += size
                counts[part, _alike(block.path)] += 1
    found = [
        Allocation(part, what, round(size), _times(counts[part, what], "layer"))
        for (part, what), size in sizes.items()
        if round(size)
    ]
    found += _activations(result, rank, stages)
    memory = result.memory[rank]
    found.append(Allocation("transient", "the largest backward step", memory.transient))
    found.append(Allocation("reserved", "CUDA context, NCCL, fragments", memory.reserved))
    return _adjusted(sorted(found, key=lambda one: -one.size_bytes), memory)


def _activations(result: Simulated, rank: int, stages: Iterable[Stage]) -> Iterable[Allocation]:
    """The tensors that are kept for backward passes, of all micro-batches in flight."""
    memory, replayed = result.job.graph.memory, result.replayed
    peak_ns = use_over_time(result, rank).peak_ns
    own = memory.pool == result.job.ranks[rank].pool
    begun = own & (replayed.start_ns <= peak_ns) & (memory.allocated_bytes > 0)
    ended = own & (replayed.end_ns <= peak_ns) & (memory.freed_bytes > 0)
    begins, ends = ({*np.flatnonzero(which).tolist()} for which in (begun, ended))
    record = result.job.ranks[rank]
    starts: Counter[tuple[int, Act]] = Counter()
    freed: Counter[int] = Counter()
    for done in record.done:
        starts[done.action.stage, done.action.act] += done.first in begins
        freed[done.action.stage] += done.last in ends
    calls = {call.name: call for call in result.program.model.blocks}
    sizes: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    for number, stage in zip(
        range(rank, len(result.program.stages), result.program.strategy.mesh.pp),
        stages,
        strict=True,
    ):
        flying = starts[number, Act.FORWARD] - freed[number]
        saved: dict[tuple[str, Layout], int] = {}
        for block in stage.blocks:
            saved |= saved_by(calls[block.path], block.compiled)
        for (tensor, _), size in saved.items():
            sizes[_alike(tensor)] += size * flying
            counts[_alike(tensor)] += flying
        recomputed = starts[number, Act.BACKWARD] - freed[number]
        if size := stage.recomputed_bytes * recomputed:
            yield Allocation("activations", "recomputed", size, _times(recomputed, "time"))
    for tensor, size in sizes.items():
        if size:
            yield Allocation("activations", tensor, size, _times(counts[tensor], "tensor"))


def _alike(path: str) -> str:
    """A path in which the numbers of layers are left out."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def _times(count: int, what: str) -> str:
    return f"{count:,} {what}s" if count > 1 else ""


def _adjusted(found: list[Allocation], memory: RankMemory) -> list[Allocation]:
    """``found`` with what rounding left out, so that it adds up to the total."""
    rest = memory.total - sum(one.size_bytes for one in found)
    return found if not rest else [*found, Allocation("rounding", "of shares", rest)]
