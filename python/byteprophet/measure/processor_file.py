"""What a recorded job used of the cores that its roles share, from ``processors/<role>.json``.

A process knows the processor time of all its threads, and of its training thread
(``observe/processor_log.py``). What is left, less updates and compressing, carried messages. Of
that, each of gloo's messages takes what was measured once (``MESSAGE_NS``), and the rest divided by
the bytes which arrived is the processor time of a byte.

The kernel also works for messages in soft interrupts. It counts these as time of the thread that
they interrupt, and as nobody's on an idle core. If a link is limited, nearly all that its queue and
the receiver's TCP take is such time (``SOFT_NS_PER_BYTE``). So where gloo's messages travel after
the backward pass, it is missing, and where they travel beside it, it is in the training threads'
time: a byte of gloo takes that much more, and these threads less. With our runtimes and with
servers, messages travel beside computing in any case, and it stays in the time of threads.

With servers, this is what the workers' ends of messages take. A server's end takes a part of that
(docs/processor.md), and shares the cores of workers on its machine, unless these are pinned.

There is nothing to know, and ``measured_use`` returns None, if

- a rank has no such file
- the job has servers and is one of BytePS as shipped, whose threads poll, or has several local
  ranks, or two transports
- the cores are enough for all threads of all ranks, so that nothing can slow anything down
- the training threads used less than half of what the cores had for them: they are paced, an
  accelerator computes, or other programs used the cores
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, read_json
from byteprophet.job import Job, Processors
from byteprophet.job.strategy import BYTEPS, MIXED, OURS, TORCH
from byteprophet.job.times import Int64Array
from byteprophet.measure.processors import Use
from byteprophet.measure.run import Run
from byteprophet.measure.servers import Measured, measure_run
from byteprophet.schedulers import STOCK
from byteprophet.timeline.tables import SERVED_TABLE
from byteprophet.workload.run_config import link_limits_bps

_DIRECTORY, _SCHEMA = "processors", 1
_THREADS = 4
"""Of a rank: one trains, one updates, two carry messages."""
_COMPUTES = 0.5
"""Training threads that used a smaller share of what the cores had for them are paced, or other
programs used the cores."""
MESSAGE_NS = 125_000
"""The processor time of a message of gloo beside its bytes, of both ranks: half of what a small
all-reduce between two ranks takes each of them (docs/processor.md)."""
SOFT_NS_PER_BYTE = 0.45
"""What soft interrupts take for a byte on a limited link, beside what is counted as time of the
threads that carry it (docs/processor.md)."""
_MOST_NS = 100.0
"""Of a byte: in a tiny model, what threads do otherwise would count for its few bytes."""
_SERVERS_PART = 0.65
"""What a server's end of messages takes, over what the workers' ends do: 0.26 s of 0.40 s per GB
in docs/processor.md."""
_PASSES = 2
"""Updates are measured with a clock that depends on what messages cost; this converges quickly."""


@dataclass(frozen=True)
class RankUse:
    """What a rank has used. ``rows``: iteration, time, training and process time, (iterations, 4).

    The last three are in nanoseconds: the begin of the iteration on the machine's clock, and the
    processor time until then.
    """

    machine: str
    cores: frozenset[int]
    rows: Int64Array


def measure_on_cores(run: Run) -> Measured:
    """Measure the job of ``run`` with processor time, if its ranks shared cores; else as it is.

    Raises ``UserError`` if a needed recording is missing.
    """
    wall = measure_run(run)
    use = measured_use(run, wall)
    return wall if use is None else measure_run(run, use)


def measured_use(run: Run, wall: Measured) -> Use | None:
    """What the job of ``run`` used of shared cores; None if it shared none, or it is not known.

    ``wall``: the job as measured by the wall clock.
    """
    job = wall.job
    if job.strategy.runtime == MIXED or (job.policy is not None and not _is_known(run, job)):
        return None
    ranks = _read(run.directory, job.workers)
    if ranks is None:
        return None
    machines = _with_servers(_machines(ranks), ranks, run)
    if all(_THREADS * len(each.workers) <= each.cores for each in machines):
        return None
    spent = [_spent(rank.rows, wall.start_ns.shape[1] - 1) for rank in ranks]
    trained_ns = sum(trained for trained, _ in spent)
    others_ns = sum(others for _, others in spent)
    passed_bytes = _passed_bytes(wall)
    ends = 1 + _SERVERS_PART * any(machine.servers for machine in machines)

    soft_ns = _soft_ns_per_byte(run, job)

    def with_messages(time_ns: float) -> Use:
        message_ns = message_ns_of(job, time_ns)
        left_ns = max(0.0, time_ns - message_ns * _messages(job))
        per_byte = min(_MOST_NS, left_ns * ends / passed_bytes + soft_ns) if passed_bytes else 0.0
        return Use(machines, per_byte, message_ns)

    use = with_messages(others_ns)
    for _ in range(_PASSES):
        found = measure_run(run, use).job
        use = with_messages(others_ns - _updates_ns(found) - _compressing_ns(found))
    times = found.times
    computed_ns = float((times.forward_ns.sum(axis=2) + times.backward_ns).mean(axis=1).sum())
    return None if trained_ns < _COMPUTES * computed_ns else use


def _spent(rows: Int64Array, iterations: int) -> tuple[float, float]:
    """Processor time of an iteration: of the training thread, and of all other threads.

    The mean of the last ``iterations`` ones, as far as they are known.
    """
    last = rows[-(iterations + 1) :]
    if len(last) < 2:
        return 0.0, 0.0
    trained_ns, process_ns = (last[-1, 2:] - last[0, 2:]) / (len(last) - 1)
    return float(trained_ns), float(max(0, process_ns - trained_ns))


def _soft_ns_per_byte(run: Run, job: Job) -> float:
    """What soft interrupts take for a byte of gloo that travels in ``run``."""
    limited = None not in link_limits_bps(run.config)
    return SOFT_NS_PER_BYTE if limited and job.transport == TORCH else 0.0


def message_ns_of(job: Job, most_ns: float = math.inf) -> int:
    """The processor time of a message; ``most_ns``: of all messages of an iteration, at most."""
    messages = _messages(job)
    return int(min(MESSAGE_NS, max(0.0, most_ns) / messages)) if messages else 0


def _messages(job: Job) -> int:
    """How many messages gloo sends in an iteration, on all ranks.

    A frozen unit of FSDP2 is all-gathered, and not reduced.
    """
    if job.transport != TORCH:
        return 0
    buckets = job.strategy.buckets
    collectives = len(buckets) + sum(job.model.trains(each.parameters) for each in buckets)
    return collectives * (job.workers - 1) * job.workers


def _passed_bytes(measured: Measured) -> float:
    """What arrives at all ranks in an iteration; with servers, at these, too."""
    job = measured.job
    if job.policy is not None:
        return float(2 * job.workers * sum(job.wire_bytes))
    sharded = {
        name for bucket in job.strategy.buckets if bucket.sharded for name in bucket.parameters
    }
    sizes = zip(job.model.names, job.model.sizes_bytes, job.wire_bytes, strict=True)
    both = sum(wire + (own if name in sharded else wire) for name, own, wire in sizes)
    return (job.workers - 1) * both


def _updates_ns(job: Job) -> float:
    """The processor time of all ranks' updaters in an iteration.

    Where the training thread updates, this is part of what it uses.
    """
    if job.strategy.runtime not in (BYTEPS, *OURS):
        return 0.0
    return float(job.times.update_ns.sum(axis=2).mean(axis=1).sum())


def _compressing_ns(job: Job) -> float:
    """The processor time that all ranks compress for in an iteration."""
    costs = job.cluster.costs.compressing
    return float(job.workers * sum(each.before_ns + each.after_ns for each in costs))


def _is_known(run: Run, job: Job) -> bool:
    """Whether the threads of a job with servers are known."""
    return job.push_policy.name != STOCK and run.config["local_ranks"] == 1


def _with_servers(
    machines: tuple[Processors, ...], ranks: Sequence[RankUse], run: Run
) -> tuple[Processors, ...]:
    """``machines`` with the servers that recorded on them, where all ranks share their cores.

    Aligned events do not tell: all of them name the machine whose clock they are on.
    """
    on: dict[str, list[int]] = {}
    for events in run.events:
        if events.table is SERVED_TABLE:
            on.setdefault(events.origin.machine, []).append(events.origin.rank)
    named = [ranks[each.workers[0]].machine for each in machines]
    return tuple(
        replace(each, servers=tuple(sorted(on.get(name, ())))) if named.count(name) == 1 else each
        for each, name in zip(machines, named, strict=True)
    )


def _machines(ranks: Sequence[RankUse]) -> tuple[Processors, ...]:
    """Ranks on one machine share cores, unless they are pinned to different ones."""
    groups: list[tuple[str, set[int], list[int]]] = []
    for rank, each in enumerate(ranks):
        joined = [g for g in groups if g[0] == each.machine and g[1] & each.cores]
        cores, members = set(each.cores), [rank]
        for group in joined:
            groups.remove(group)
            cores |= group[1]
            members += group[2]
        groups.append((each.machine, cores, sorted(members)))
    return tuple(Processors(tuple(members), len(cores)) for _, cores, members in groups)


def _read(run_directory: Path, ranks: int) -> list[RankUse] | None:
    """What each rank has used; None if a file is missing."""
    found: dict[int, RankUse] = {}
    for path in sorted((run_directory / _DIRECTORY).glob("worker-*.json")):
        rank, use = _parsed(path, read_json(path))
        found[rank] = use
    return [found[rank] for rank in range(ranks)] if found.keys() >= {*range(ranks)} else None


def _parsed(path: Path, data: Any) -> tuple[int, RankUse]:
    if not has_schema(data, _SCHEMA):
        raise UserError(f"{path}: schema: must be {_SCHEMA}")
    rank, machine, cores = data.get("rank"), data.get("machine"), data.get("cores")
    rows = data.get("iterations")
    if type(rank) is not int or not isinstance(machine, str):
        raise UserError(f"{path}: must have a rank and a machine")
    if not isinstance(cores, list) or not cores or any(type(core) is not int for core in cores):
        raise UserError(f"{path}: cores: must be a list of numbers of cores")
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
        raise UserError(
            f"{path}: iterations: each must have a number, a time and two processor times"
        )
    table = np.array(rows, np.int64).reshape(-1, 4)
    return rank, RankUse(machine, frozenset(cores), table)


def _is_row(row: object) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 4
        and all(type(each) is int and 0 <= each < 1 << 62 for each in row)
    )
