"""Searches the usual combinations of parallelism for the fastest ones that fit into memory.

Candidates are all combinations of tensor, pipeline and data parallelism (tp within a node), sizes
of micro-batches, schedules, sharding and recomputation that give the wanted global batch. Experts
are also divided among data-parallel ranks. If sequences are long, or nothing fits into memory,
there is context parallelism as well. Each is simulated, on all cores. Those that cannot be are
counted with their reason. Those that cannot fit into memory are not simulated: whatever the
schedule, or because smaller micro-batches do not fit.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from math import gcd

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
from byteprophet.simulate.models.load import Source
from byteprophet.simulate.models.module import Model
from byteprophet.simulate.tree.one_line import given_keys, parse_strategy
from byteprophet.simulate.tree.scope import VOCABULARY, padding_advice
from byteprophet.simulate.tree.strategy import LARGEST

_MOST_PP = _MOST_CP = 64
_LONG = 32_768
"""Tokens of a sequence from which context parallelism is usual."""
_TOGETHER = 2
"""Families that a process gets at a time."""
_SEARCHED = (
    *("tp", "pp", "dp", "cp", "ep", "sp", "ring", "micro_batch", "micro_batches"),
    *("schedule", "chunks", "zero", "recompute"),
)
"""Keys of which candidates differ."""
Family = tuple[str, ...]
"""Strategies, each in one line, that differ in their micro-batches only; the smallest come first.
"""


def fixed_keys(text: str) -> str:
    """The keys that all candidates are to have, as they stand in them.

    Args:
        text: a part of a strategy in one line.

    Raises:
        UserError: a key is not known, or its value is searched for.
    """
    for key in given_keys(text):
        if key in _SEARCHED:
            raise UserError(
                f"--strategy with --batch: {key}: is searched for: give other keys, such as "
                "precision=fsdp2"
            )
    return " ".join(text.replace(",", " ").split())


def candidates(job: Job, gpus_per_node: int, model: Model) -> Iterator[str]:
    """The strategies without context parallelism, each in one line."""
    return chain.from_iterable(_families(job, gpus_per_node, (1,), model))


def _families(
    job: Job, gpus_per_node: int, degrees: Sequence[int], model: Model
) -> Iterator[Family]:
    """All candidates with these context-parallel ``degrees``."""
    experts = _parts(model, "experts") or 1
    fixed = f" {job.fixed}" if job.fixed else ""
    for tp in _tensor_degrees(job, gpus_per_node):
        for cp in degrees:
            left = job.gpus // (tp * cp)
            if left * tp * cp != job.gpus:
                continue
            for pp in _divisors(left, _MOST_PP):
                dp = left // pp
                if job.batch % dp:
                    continue
                for ep in _divisors(gcd(experts, dp)):
                    mesh = f"tp={tp} pp={pp} dp={dp}"
                    mesh += f" ep={ep}" if ep > 1 else ""
                    mesh += f" cp={cp} ring=1" if cp > 1 else ""
                    sequence = " sp=1" if tp > 1 and model.tokens > 1 else ""
                    variants = _variants(sequence, pp, dp * cp, fixed)
                    yield from _shaped(job.batch // dp, mesh, variants)


def _tensor_degrees(job: Job, gpus_per_node: int) -> list[int]:
    """The tensor-parallel degrees of candidates; the last one is a multiple of all."""
    return _divisors(job.gpus if job.gpus <= gpus_per_node else gcd(job.gpus, gpus_per_node))


def _shaped(samples: int, mesh: str, variants: Iterable[str]) -> Iterator[Family]:
    """The candidates of a mesh. ``samples``: those of a data-parallel rank in an iteration."""
    sizes = [size for size in _powers(samples) if samples % size == 0]
    for variant in variants:
        yield tuple(
            f"{mesh} micro_batch={size} micro_batches={samples // size}{variant}" for size in sizes
        )


def _variants(sequence: str, pp: int, replicas: int, fixed: str) -> Iterator[str]:
    schedules = ["", " schedule=interleaved chunks=2", " schedule=zb1p"] if pp > 1 else [""]
    shards = [""] if replicas == 1 else [" zero=1"] if pp > 1 else [" zero=1", " zero=3"]
    for schedule in schedules:
        for shard in shards:
            for recompute in ("", " recompute=full"):
                yield sequence + schedule + shard + recompute + fixed


def _powers(most: int) -> list[int]:
    return [1 << at for at in range(most.bit_length())]


def _divisors(of: int, most: int = LARGEST) -> list[int]:
    return [one for one in range(1, min(of, most) + 1) if of % one == 0]


def _parts(model: Model, dim: str) -> int:
    """The largest number of ranks that can divide a dimension everywhere; 0: there is none."""
    modules = {id(call.module): call.module for call in model.blocks}.values()
    operators = (each for module in modules for _, each in module.operators())
    return gcd(*(each.size.get(dim, 0) for each in operators))


def undivided_vocabulary(job: Job, model: Model) -> str:
    """Which tensor-parallel degrees do not divide a model's vocabulary; empty: all do."""
    gpus_per_node = _cluster(job.cluster, job.costs).node.gpus
    size, degrees = _parts(model, VOCABULARY), _tensor_degrees(job, gpus_per_node)
    refused = [str(tp) for tp in degrees if size % tp]
    if not refused:
        return ""
    return (
        f"Not simulated with tp={', '.join(refused)}: the vocabulary of {size} cannot be divided "
        f"so. {padding_advice(size, degrees[-1])}"
    )


@lru_cache(maxsize=1)
def _cluster(name: str, costs: str) -> Cluster:
    return cluster_with_costs(name, costs)


@lru_cache(maxsize=64)
def _model(source: Source, samples: int) -> Model:
    return source(samples)


def evaluate_family(job: Job, source: Source, lines: Family) -> list[Found]:
    """Simulate candidates, smaller micro-batches first, until one does not fit into memory."""
    found: list[Found] = []
    least = 0
    for line in lines:
        one = Found(line, memory_bytes=least) if least else evaluate(job, source, line)
        if not one.fits and not one.refused:
            least = one.memory_bytes
        found.append(one)
    return found


def evaluate(job: Job, source: Source, line: str) -> Found:
    """Simulate one candidate. One that cannot fit into memory is not simulated.

    Args:
        job: what is searched for.
        source: its model, which is loaded once: tracing takes many times as long as simulating.
        line: the candidate.
    """
    try:
        strategy = parse_strategy(line, job.gpus)
        model = _model(source, strategy.samples)
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


def search(
    job: Job, source: Source, told: Callable[[int, int], None], kept: Kept | None = None
) -> list[Found]:
    """Simulate all candidates, and return them with the fastest first.

    Args:
        job: what is searched for.
        source: its model, which is loaded once for all processes.
        told: is told how many candidates of how many are done.
        kept: what an earlier search found is not simulated again, and what this one finds is kept.

    Raises:
        UserError: no candidate can be simulated.
    """
    cluster = _cluster(job.cluster, job.costs)
    node, several = cluster.node.gpus, _powers(_MOST_CP)[1:]
    model = source(1)
    degrees = (1, *several) if model.tokens >= _LONG else (1,)
    families = list(_families(job, node, degrees, model))
    known = {} if kept is None else kept.load(job, cluster)
    found: dict[str, Found] = {}
    _find(job, source, families, known, found, told, kept)
    if 1 < model.tokens < _LONG and not any(one.fits for one in found.values()):
        families += _families(job, node, several, model)
        _find(job, source, families, known, found, told, kept)
    if not found:
        raise UserError(_without_candidates(job))
    if all(one.refused for one in found.values()):
        reason, _ = Counter(one.refused for one in found.values()).most_common(1)[0]
        raise UserError(f"--batch {job.batch}: no strategy can be simulated: {reason}")
    return sorted(found.values(), key=_order)


def _without_candidates(job: Job) -> str:
    return (
        f"--batch {job.batch}: no number of data-parallel ranks of {job.gpus} GPUs divides it, "
        f"with tp within a node and pp up to {_MOST_PP}"
    )


def _find(
    job: Job,
    source: Source,
    families: Sequence[Family],
    known: Mapping[str, Found],
    found: dict[str, Found],
    told: Callable[[int, int], None],
    kept: Kept | None,
) -> None:
    """Add to ``found`` those of ``families`` that it lacks; ``known`` are not simulated again."""
    lines = list(chain.from_iterable(families))
    found.update({line: known[line] for line in lines if line in known})
    left = [tuple(line for line in family if line not in found) for family in families]
    left = [family for family in left if family]
    told(len(found), len(lines))
    if left:
        results = in_processes(
            partial(evaluate_family, job, source),
            left,
            processes=min(len(os.sched_getaffinity(0)), 1 + len(left) // _TOGETHER),
            together=_TOGETHER,
            begin=collect_rarely,
        )
        for several in results:
            found.update({one.strategy: one for one in several})
            told(len(found), len(lines))
            if kept is not None:
                kept.keep(found)
    if kept is not None:
        kept.write(found)


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
