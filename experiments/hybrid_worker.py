"""A rank of a job of ``hybrid.py``: ``python hybrid_worker.py CONFIG.json``.

It runs several cases behind each other, because importing torch takes longer than any of them, and
writes what it has seen to ``hybrid-RANK.json`` in the run directory.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hybrid_beside import measure_beside
from hybrid_cases import Case
from hybrid_device import Device, Watch
from hybrid_links import measure_links, shorten_burst
from hybrid_operators import Table, Turn, as_rows, keep_memory, read_operators
from hybrid_parallel import Job, Ranks, ranks_of

from byteprophet.errors import JobFailed, UserError, one_line
from byteprophet.input_files import read_json
from byteprophet.paced.collective_settings import resolve, settles_after
from byteprophet.paced.real_time import run_in_real_time
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.whole_files import write_whole

_TIMEOUT_S = 120.0
_NICE = -10
_GLOO_THREADS = ("gloo_tcp", "pt_gloo")
_WARMUP, _TIMED_WARMUP = 2, 1
"""DistributedDataParallel makes other buckets as the second iteration begins."""
_MEMORY_WARMUP = 3
"""Later iterations get no new memory from the kernel (``keep_memory``)."""


@dataclass(frozen=True)
class Config:
    """What a rank is told.

    Attributes:
        cases: models and strategies.
        iterations: how many are measured; 0: one is counted, and nothing is paced.
        turn: a file that a rank locks while an operator computes; then operators are measured.
        operators: the table of operators' times; empty: operators compute.
        links: whether collectives are measured first.
        beside: whether it is measured what operators and collectives lose to each other.
        rate_bps: the limit of the rank's link; 0: none.
        slowed: operators take so many times as long.
        losses: whether to note losses.
    """

    cases: list[list[str]]
    iterations: int = 0
    turn: str = ""
    operators: str = ""
    links: bool = False
    beside: bool = False
    rate_bps: int = 0
    slowed: int = 1
    losses: bool = False


@dataclass
class Seen:
    """What a rank has seen of a case.

    Attributes:
        calls: kind, axes, bytes and number of collectives of an iteration.
        unknown: collectives that are not known.
        operations: the operators that ran, with their outputs, and how often, or their times (ns).
        iterations: begin and end of each measured one, in ns of the monotonic clock.
        busy_ns: how long the operators of each were, if they are paced.
        losses: the sum of the losses of micro-batches.
    """

    calls: list[list[Any]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    operations: list[Any] = field(default_factory=list)
    iterations: list[list[int]] = field(default_factory=list)
    busy_ns: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


class _Rank:
    def __init__(self, config: Config) -> None:
        self._config = config
        table: Table = read_operators(Path(config.operators)) if config.operators else {}
        self._table = {
            each: paced._replace(time_ns=config.slowed * paced.time_ns)
            for each, paced in table.items()
        }
        self._ranks: dict[Mesh, Ranks] = {}
        self._axes: dict[str, str] = {}

    def run(self, case: Case) -> Seen:
        mesh = case.strategy.mesh
        if mesh not in self._ranks:
            self._ranks[mesh] = ranks_of(mesh)
        # Groups of earlier meshes, too: DTensor reuses those of equal ones.
        self._axes |= self._ranks[mesh].axes
        device = Device() if self._table else None
        finish = None if device is None else device.finish
        job = Job(case, self._ranks[mesh], computes=not self._table, finish=finish)
        try:
            if not self._config.iterations:
                return self._counted(job)
            if self._config.turn:
                return self._in_turn(job)
            return self._continuous(job, device) if case.runtime else self._timed(job, device)
        finally:
            job.close()

    def _counted(self, job: Job) -> Seen:
        """The collectives and operators of an iteration, after others."""
        seen = Seen()
        for number in range(_WARMUP + 1):
            watch = Watch(self._axes)
            with watch:
                losses = job.iteration()
            if self._config.losses:
                seen.losses.append(sum(float(loss) for loss in losses))
            if number < _WARMUP:
                continue
            seen.calls = [[*call, count] for call, count in sorted(watch.calls.items())]
            seen.unknown = sorted(watch.unknown)
            seen.operations = as_rows(watch.operations, watch.counts)
        return seen

    def _in_turn(self, job: Job) -> Seen:
        """The least time of each operator, while no other rank computes."""
        for _ in range(_MEMORY_WARMUP):
            job.iteration()
        watch = Watch(self._axes, turn=Turn(Path(self._config.turn)))
        with watch:
            for _ in range(self._config.iterations):
                job.iteration()
        times_ns = {each: min(times) for each, times in watch.times_ns.items()}
        return Seen(operations=as_rows(watch.operations, times_ns))

    def _timed(self, job: Job, device: Device | None) -> Seen:
        """Iterations, each after all ranks have met."""
        seen = Seen()
        for number in range(_TIMED_WARMUP + self._config.iterations):
            dist.barrier()
            begin_ns, end_ns = self._iteration(job, device)
            if number >= _TIMED_WARMUP:
                seen.iterations.append([begin_ns, end_ns])
                seen.busy_ns += [] if device is None else [device.busy_ns]
        return seen

    def _continuous(self, job: Job, device: Device | None) -> Seen:
        """Iterations that end when the next one begins, whose forward pass waits for parameters."""
        seen = Seen()
        warmup = settles_after(job.runtime, resolve(job.runtime, {})) + _TIMED_WARMUP
        for _ in range(warmup):
            self._iteration(job, device)
        if not job.settled:
            raise JobFailed(f"{job.runtime}: has no buckets after {warmup} iterations")
        begins: list[int] = []
        for _ in range(_TIMED_WARMUP + self._config.iterations + 1):
            begins.append(self._iteration(job, device)[0])
            seen.busy_ns += [] if device is None else [device.busy_ns]
        seen.iterations = [list(pair) for pair in pairwise(begins)][_TIMED_WARMUP:]
        seen.busy_ns = seen.busy_ns[_TIMED_WARMUP:-1]
        return seen

    def _iteration(self, job: Job, device: Device | None) -> tuple[int, int]:
        """Begin and end of one iteration."""
        if device is None:
            begin_ns = time.monotonic_ns()
            job.iteration()
            return begin_ns, time.monotonic_ns()
        _hurry_gloo()
        begin_ns = device.restart()
        with Watch(self._axes, device, self._table):
            job.iteration()
        return begin_ns, device.finish()


def _hurry() -> None:
    """Let the threads that gloo starts run before other programs, as a network card would."""
    with contextlib.suppress(PermissionError):
        os.nice(_NICE)


def _hurry_gloo() -> None:
    """Give gloo's threads the priority of the thread that stands for the device.

    They wait for each other by ``sched_yield`` where one drops a buffer that another one uses. That
    lets no thread of a lower priority run on the same core, until Linux does so after 0.95 s.
    """
    parameter = os.sched_param(os.sched_get_priority_min(os.SCHED_RR))
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if (thread / "comm").read_text().startswith(_GLOO_THREADS):
                os.sched_setscheduler(int(thread.name), os.SCHED_RR, parameter)


def main(arguments: list[str]) -> int:
    """Run the cases that the configuration names, and return the exit status."""
    config = Config(**read_json(Path(arguments[0])))
    torch.set_num_threads(1)
    keep_memory()
    if config.rate_bps:
        _hurry()
    dist.init_process_group("gloo", timeout=timedelta(seconds=_TIMEOUT_S))
    found: dict[str, Any] = {}
    try:
        if config.rate_bps:
            shorten_burst(os.environ["GLOO_SOCKET_IFNAME"], config.rate_bps)
        if (config.operators or config.links) and not run_in_real_time():
            print("hybrid: no real-time priority: times will be disturbed", flush=True)
        if config.links:
            found["links"] = [list(one) for one in measure_links(_hurry_gloo)]
        if config.beside:
            found["beside"] = list(measure_beside())
        rank = _Rank(config)
        for model, line in config.cases:
            case = Case(model, line)
            if dist.get_rank() == 0:
                print(f"hybrid: {case.name}", flush=True)
            found[case.name] = asdict(rank.run(case))
            gc.collect()
    finally:
        dist.destroy_process_group()
    path = Path(os.environ["BYTEPROPHET_RUN"]) / f"hybrid-{os.environ['RANK']}.json"
    write_whole(path, json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (JobFailed, UserError) as error:
        print(f"byteprophet: error: {one_line(str(error))}", file=sys.stderr)
        sys.exit(1)
