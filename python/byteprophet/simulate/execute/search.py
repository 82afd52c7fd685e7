"""Searches the usual combinations of parallelism for the fastest ones that fit into memory.

Candidates are all combinations of tensor, pipeline and data parallelism (tp within a node), sizes
of micro-batches, schedules, sharding and recomputation that give the wanted global batch. Each is
simulated, on all cores. Those that cannot be are counted with their reason.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import get_context

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.costs.sources import cluster_with_costs
from byteprophet.simulate.execute.simulate import simulate
from byteprophet.simulate.models.load import load_model
from byteprophet.simulate.tree.one_line import parse_strategy

_MICRO_BATCHES = (1, 2, 4, 8)
_TOGETHER = 8
"""Candidates that a process gets at a time."""


@dataclass(frozen=True)
class Job:
    """What is searched for: a model, cluster and costs by name or file, GPUs, samples."""

    model: str
    cluster: str
    gpus: int
    batch: int
    sequence: int | None = None
    costs: str = ""


@dataclass(frozen=True)
class Found:
    """A candidate. ``refused``: why it cannot be simulated; then the figures are 0."""

    strategy: str
    iteration_ns: int = 0
    memory_bytes: int = 0
    mfu: float = 0.0
    fits: bool = False
    refused: str = ""


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
    """Simulate one candidate."""
    try:
        strategy = parse_strategy(line, job.gpus)
        model = load_model(job.model, strategy.samples, job.sequence)
        result = simulate(model, strategy, _cluster(job.cluster, job.costs))
    except UserError as error:
        return Found(line, refused=str(error))
    memory = max(rank.total for rank in result.memory)
    return Found(line, result.iteration_ns, memory, result.mfu, result.fits)


def search(job: Job, say: Callable[[str], None]) -> list[Found]:
    """Simulate all candidates, and return them with the fastest first.

    Args:
        job: what is searched for.
        say: is told how far the search is.

    Raises:
        UserError: no candidate can be simulated.
    """
    lines = list(candidates(job, _cluster(job.cluster, job.costs).node.gpus))
    if not lines:
        raise UserError(
            f"--batch {job.batch}: no number of data-parallel ranks of {job.gpus} GPUs divides it"
        )
    load_model(job.model, 1, job.sequence)  # refused once, and not by every process
    found: list[Found] = []
    processes = min(os.cpu_count() or 1, 1 + len(lines) // _TOGETHER)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for at, one in enumerate(pool.map(partial(evaluate, job), lines, chunksize=_TOGETHER), 1):
            found.append(one)
            if at % 100 == 0:
                say(f"{at} of {len(lines)} strategies")
    if all(one.refused for one in found):
        reason, _ = Counter(one.refused for one in found).most_common(1)[0]
        raise UserError(f"--batch {job.batch}: no strategy can be simulated: {reason}")
    return sorted(found, key=lambda one: (bool(one.refused), one.iteration_ns, one.memory_bytes))


def pareto(found: list[Found]) -> list[Found]:
    """Those that fit, and than which no other is both as fast and as small; the fastest first."""
    front: list[Found] = []
    for one in found:
        if one.fits and (not front or one.memory_bytes < front[-1].memory_bytes):
            front.append(one)
    return front
