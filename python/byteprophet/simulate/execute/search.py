"""Searches the usual combinations of parallelism for the fastest ones that fit into memory.

Candidates are all combinations of tensor, pipeline and data parallelism (tp within a node), sizes
of micro-batches, schedules, sharding and recomputation that give the wanted global batch. Each is
simulated, on all cores. Those that cannot be are counted with their reason, and those that cannot
fit into memory, whatever the schedule, are not simulated.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache, partial

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.costs.sources import cluster_with_costs
from byteprophet.simulate.execute.kept import Found, Job, Kept
from byteprophet.simulate.execute.processes import in_processes
from byteprophet.simulate.execute.simulate import (
    compile_for,
    least_memory,
    simulate_program,
)
from byteprophet.simulate.models.load import load_model
from byteprophet.simulate.tree.one_line import parse_strategy

_MICRO_BATCHES = (1, 2, 4, 8)
_TOGETHER = 8
"""Candidates that a process gets at a time."""


def candidates(job: Job, gpus_per_node: int) -> Iterator[str]:
    """The strategies, each in one line."""
    for tp in _powers(min(job.gpus, gpus_per_node)):
        for pp in _powers(min(job.gpus // tp, 64)):
            dp = job.gpus // (tp * pp)
            if dp * tp * pp != job.gpus or job.batch % dp:
                continue
            for micro_batch in _MICRO_BATCHES:
                if job.batch % (dp * micro_batch) == 0:
                    micro_batches = job.batch // (dp * micro_batch)
                    shape = f"tp={tp} pp={pp} dp={dp} micro_batch={micro_batch}"
                    yield from _variants(f"{shape} micro_batches={micro_batches}", tp, pp, dp)


def _variants(line: str, tp: int, pp: int, dp: int) -> Iterator[str]:
    if tp > 1:
        line += " sp=1"
    schedules = ["", " schedule=interleaved chunks=2", " schedule=zb1p"] if pp > 1 else [""]
    shards = [""] if dp == 1 else [" zero=1"] if pp > 1 else [" zero=1", " zero=3"]
    for schedule in schedules:
        for shard in shards:
            for recompute in ("", " recompute=full"):
                yield line + schedule + shard + recompute


def _powers(most: int) -> list[int]:
    return [1 << at for at in range(most.bit_length())]


@lru_cache(maxsize=1)
def _cluster(name: str, costs: str) -> Cluster:
    return cluster_with_costs(name, costs)


def evaluate(job: Job, line: str) -> Found:
    """Simulate one candidate. One that cannot fit into memory is not simulated."""
    try:
        strategy = parse_strategy(line, job.gpus)
        model = load_model(job.model, strategy.samples, job.sequence)
        cluster = _cluster(job.cluster, job.costs)
        program = compile_for(model, strategy, cluster)
        least = least_memory(program, cluster)
        if least > cluster.gpu.memory_bytes:
            return Found(line, memory_bytes=least)
        result = simulate_program(program, cluster)
    except UserError as error:
        return Found(line, refused=str(error))
    memory = max(rank.total for rank in result.memory)
    return Found(line, result.iteration_ns, memory, result.mfu, result.fits)


def search(job: Job, told: Callable[[int, int], None], kept: Kept | None = None) -> list[Found]:
    """Simulate all candidates, and return them with the fastest first.

    Args:
        job: what is searched for.
        told: is told how many candidates of how many are done.
        kept: what an earlier search found is not simulated again, and what this one finds is kept.

    Raises:
        UserError: no candidate can be simulated.
    """
    cluster = _cluster(job.cluster, job.costs)
    lines = list(candidates(job, cluster.node.gpus))
    if not lines:
        raise UserError(
            f"--batch {job.batch}: no number of data-parallel ranks of {job.gpus} GPUs divides it"
        )
    load_model(job.model, 1, job.sequence)  # refused once, and not by every process
    known = {} if kept is None else kept.load(job, cluster)
    found = {line: known[line] for line in lines if line in known}
    left = [line for line in lines if line not in found]
    told(len(found), len(lines))
    processes = min(os.cpu_count() or 1, 1 + len(left) // _TOGETHER)
    if left:
        results = in_processes(
            partial(evaluate, job),
            left,
            processes=processes,
            together=_TOGETHER,
            begin=collect_rarely,
        )
        for one in results:
            found[one.strategy] = one
            told(len(found), len(lines))
            if kept is not None:
                kept.keep(found)
    if kept is not None:
        kept.write(found)
    if all(one.refused for one in found.values()):
        reason, _ = Counter(one.refused for one in found.values()).most_common(1)[0]
        raise UserError(f"--batch {job.batch}: no strategy can be simulated: {reason}")
    return sorted(found.values(), key=_order)


def _order(one: Found) -> tuple[bool, bool, int, int]:
    """The fastest first; then those that are not simulated; then those that cannot be."""
    return bool(one.refused), not one.iteration_ns, one.iteration_ns, one.memory_bytes


def collect_rarely() -> None:
    """Look for garbage in cycles more rarely: simulations make many objects, and few cycles."""
    gc.set_threshold(200_000, 20, 20)


def pareto(found: list[Found]) -> list[Found]:
    """Those that fit, and than which no other is both as fast and as small; the fastest first."""
    front: list[Found] = []
    for one in found:
        if one.fits and (not front or one.memory_bytes < front[-1].memory_bytes):
            front.append(one)
    return front
