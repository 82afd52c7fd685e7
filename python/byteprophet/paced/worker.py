"""The paced worker process of a job: ``python -m byteprophet.paced.worker CONFIG.toml``.

Trains a paced model like any BytePS training script, and writes its measurements to
``$BYTEPROPHET_RUN/results/worker-<rank>.json``. With the scheduler "stock" it uses
``byteps.torch`` exactly as upstream documents, otherwise ``byteprophet.torch``. Rank and peers
come from the environment, as in every BytePS job. Formats: ``worker_config.py``.

It measures the iterations after warm-up, from start to start. So transfers that continue after
``step`` count towards the next iteration. Then it finishes all updates, idles for a while to
measure the CPU time of an idle process, and hashes the parameters. With BYTEPROPHET_RECORD=1, it
records spans of iterations and layers, even under "stock", and how long "stock" waits for
gradients.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from byteprophet.errors import JobFailed, UserError, one_line
from byteprophet.job.strategy import OURS
from byteprophet.network.steps import announce
from byteprophet.observe import recording
from byteprophet.observe.interfaces import interface_bytes
from byteprophet.observe.messages import loaded_source
from byteprophet.observe.pace import process_pace
from byteprophet.observe.span_log import SpanLog, process_spans
from byteprophet.paced.check import parameters_sha256
from byteprophet.paced.collective_front import CollectiveFront
from byteprophet.paced.gradient import LEARNING_RATE
from byteprophet.paced.model import PacedModel
from byteprophet.paced.real_time import at_normal_priority, run_in_real_time
from byteprophet.paced.worker_config import (
    WorkerConfig,
    WorkerResult,
    read_worker_config,
)
from byteprophet.schedulers import STOCK
from byteprophet.session import process as observing
from byteprophet.timeline.tables import Kind

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # from glibc's malloc.h


@dataclass(frozen=True)
class _Usage:
    """A reading of the monotonic clock, the process' CPU time and the host's network counters."""

    monotonic_ns: int
    cpu_s: float
    sent_bytes: int
    received_bytes: int

    @classmethod
    def now(cls) -> _Usage:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        counters = interface_bytes() or {"sent_bytes": 0, "received_bytes": 0}
        return cls(
            time.monotonic_ns(),
            usage.ru_utime + usage.ru_stime,
            **counters,
        )

    def cpu_fraction_until(self, later: _Usage) -> float:
        return (later.cpu_s - self.cpu_s) / max(1, later.monotonic_ns - self.monotonic_ns) * 1e9


def work(config: WorkerConfig, front: Any, spans: SpanLog | None = None) -> WorkerResult:
    """Train and measure. ``front`` is an initialised module like ``byteps.torch``.

    It may also be a ``CollectiveFront``. Then the module that it prepares is trained in place of
    the model. In this case, parameters are broadcast before that, because a rank may keep only its
    shards of them. If ``spans`` is given, iterations, layers and the waits of "stock" are recorded
    there.
    """
    workload = config.load_workload()
    model = PacedModel(workload, front.rank())
    if spans is not None:
        model.record_spans(spans)
    trained: torch.nn.Module = model
    collective = isinstance(front, CollectiveFront)
    if collective:
        _broadcast(model, front)
        trained = front.prepare(model, spans)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    named = list(model.named_tensors())
    scheduled = config.scheduler not in (None, STOCK)
    extra = {"model": model} if scheduled else {}
    optimizer = front.DistributedOptimizer(optimizer, named_parameters=named, **extra)
    if spans is not None and config.scheduler == STOCK:
        optimizer.synchronize = _recorded(optimizer.synchronize, spans)
    if not collective:
        _broadcast(model, front)

    signal = torch.zeros(workload.batch_size, 0)  # empty, but profiles record its batch size
    starts_ns: list[int] = []
    tuning_ns: list[int] = []
    measured_from = config.warmup_iterations + config.tune_iterations
    counted = scheduled or config.runtime in OURS  # by the front
    if counted:
        from byteprophet.torch.recording.stopwatch import process_stopwatch

        model.keep_step_while(lambda: process_stopwatch.runs)
    gc.collect()
    gc.freeze()  # else full collections of the imports' objects take 150 ms each, with the GIL held
    real_time = run_in_real_time()
    for iteration in range(config.updates):
        if iteration == config.warmup_iterations:
            starts_ns = [time.monotonic_ns()]
        if iteration == measured_from:
            if collective:
                front.check_settled()
            tuning_ns = [after - before for before, after in pairwise(starts_ns)]
            begun = _Usage.now()
            starts_ns = [begun.monotonic_ns]
        if front.rank() == 0:
            announce(iteration)
        if iteration == config.next_batch_at:
            workload = config.load_next_workload()
            model.take_times_of(workload)
            signal = torch.zeros(workload.batch_size, 0)
        if not counted:
            process_pace.begin(iteration + 1)
        optimizer.zero_grad()
        trained(signal).sum().backward()
        with at_normal_priority():
            optimizer.step()
        starts_ns.append(time.monotonic_ns())
    ended = _Usage.now()

    if hasattr(optimizer, "finish"):
        optimizer.finish()
    idle_from = _Usage.now()
    time.sleep(config.idle_s)
    idle_until = _Usage.now()
    whole = front.whole if collective else torch.Tensor.detach
    tensors = ((name, whole(values).numpy()) for name, values in named)
    return WorkerResult(
        rank=front.rank(),
        size=front.size(),
        iteration_ns=tuple(after - before for before, after in pairwise(starts_ns)),
        cpu_fraction=begun.cpu_fraction_until(ended),
        idle_cpu_fraction=idle_from.cpu_fraction_until(idle_until) if config.idle_s else 0.0,
        parameters_sha256=parameters_sha256(tensors),
        updates=config.updates,
        scheduled_partitions=front.scheduled_partitions() if scheduled else 0,
        first_monotonic_ns=starts_ns[0],
        last_monotonic_ns=starts_ns[-1],
        tuning_ns=tuple(tuning_ns),
        real_time=real_time,
        partition_bytes=front.partition_bytes() if scheduled else 0,
        wire_bytes=(
            ended.sent_bytes - begun.sent_bytes,
            ended.received_bytes - begun.received_bytes,
        ),
    )


def main(arguments: Sequence[str]) -> int:
    """Run the worker that the environment describes, and return the exit status."""
    return run_worker("byteprophet.paced.worker", arguments, import_front)


def run_worker(
    module: str,
    arguments: Sequence[str],
    make_front: Callable[[WorkerConfig], Any],
    train: Callable[[WorkerConfig, Any, SpanLog | None], WorkerResult] = work,
) -> int:
    """Run a paced worker process, ``python -m module CONFIG.toml``, from start to end.

    ``make_front`` makes its front, not yet initialised. ``train`` trains and measures. Returns the
    exit status.
    """
    try:
        if len(arguments) != 1:
            raise UserError(f"usage: python -m {module} CONFIG.toml")
        config = read_worker_config(arguments[0])
        config.load_workload()  # raises an error if it is bad, before joining the job
        run_directory = os.environ.get("BYTEPROPHET_RUN")
        if not run_directory:
            raise UserError("BYTEPROPHET_RUN is not set: the launcher sets it to the run directory")
        spans = process_spans if recording.check(os.environ) else None
        front = make_front(config)
        torch.set_num_threads(1)
        keep_freed_memory()
        process_spans.told_by_model = True  # before other code adds hooks to the model
        front.init()
    except UserError as error:
        print(f"byteprophet: error: {one_line(str(error))}", file=sys.stderr)
        return 2
    if config.scheduler in (None, STOCK):  # the front of other schedulers does this itself
        pushes = config.scheduler == STOCK and front.local_rank() == front.local_size() - 1
        observing.start_spans(front.rank(), front.size(), loaded_source() if pushes else None)
    try:
        result = train(config, front, spans)
    except JobFailed as failure:
        print(f"byteprophet: error: {one_line(str(failure))}", file=sys.stderr)
        return 1
    result.write(Path(run_directory))
    observing.stop()
    front.shutdown()
    return 0


def import_front(config: WorkerConfig) -> Any:
    """The module that the scheduler of ``config`` needs. Raises ``UserError`` if it cannot be."""
    scheduler = config.scheduler
    if scheduler is None:
        raise UserError("scheduler is missing: this worker uses BytePS")
    name = "byteps.torch" if scheduler == STOCK else "byteprophet.torch"
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"scheduler '{scheduler}' needs {name}, not usable: {error}") from None


def _recorded(wait: Callable[[], None], spans: SpanLog) -> Callable[[], None]:
    """Wrap ``synchronize`` of BytePS' optimizer, which ``step`` calls, to record it as a span."""

    def synchronize() -> None:
        with spans.span(Kind.WAIT, "all gradients"):
            wait()

    return synchronize


def _broadcast(model: PacedModel, front: Any) -> None:
    """Broadcast rank 0's parameters to all ranks.

    The parameters of other ranks are overwritten first, so that the hash reveals a broadcast that
    does nothing.
    """
    parameters = {name: values.detach() for name, values in model.named_tensors()}
    if front.rank() != 0:
        for values in parameters.values():
            values.fill_(front.rank())
    front.broadcast_parameters(parameters, root_rank=0)


def keep_freed_memory() -> None:
    """Make malloc keep freed memory.

    Gradients are allocated in each iteration. If their memory went back to the system in between,
    the kernel would zero it each time, which takes more CPU time than everything else here.
    Frameworks on accelerators cache their memory, too. Does nothing if malloc is not glibc's.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
