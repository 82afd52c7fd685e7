"""A paced worker that trains under several strategies in turn: ``... in_turn CONFIG.toml``.

Most of the time of a short job passes before its first iteration and behind its last. Here one job
measures many strategies: for each of them there is a new model and a new optimizer, which trains
for the warm-up and the measured iterations of the configuration. Tensors have the number of the
strategy in front of their names, because BytePS fixes the size and the servers of a
name with its first push. All strategies of a job have the same roles, and the same policy and
settings if there are servers.

The result is that of ``worker.py``; its iterations are those of all strategies in turn, and its
digest is of all parameters.

Threads: the training thread does everything here.
"""

from __future__ import annotations

import gc
import hashlib
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from byteprophet.network.steps import announce
from byteprophet.observe.span_log import SpanLog
from byteprophet.paced.check import parameters_sha256
from byteprophet.paced.collective_worker import SyncFront
from byteprophet.paced.gradient import LEARNING_RATE
from byteprophet.paced.model import PacedModel
from byteprophet.paced.real_time import at_normal_priority, run_in_real_time
from byteprophet.paced.worker import import_front, run_worker
from byteprophet.paced.worker_config import WorkerConfig, WorkerResult, numbered
from byteprophet.workload import Workload


def work(config: WorkerConfig, front: Any, spans: SpanLog | None = None) -> WorkerResult:
    """Train under each strategy of ``config`` in turn, and measure. Nothing is recorded."""
    workload = config.load_workload()
    gc.collect()
    gc.freeze()
    real_time = run_in_real_time()
    times_ns: list[int] = []
    digest = hashlib.sha256()
    first_ns = time.monotonic_ns()
    for number, path in enumerate(config.strategies):
        starts_ns, parameters = _trained(_named(workload, number), config, front, path)
        times_ns += [after - before for before, after in pairwise(starts_ns)]
        digest.update(parameters.encode())
    return WorkerResult(
        rank=front.rank(),
        size=front.size(),
        iteration_ns=tuple(times_ns),
        cpu_fraction=0.0,
        idle_cpu_fraction=0.0,
        parameters_sha256=digest.hexdigest(),
        updates=len(config.strategies) * config.updates,
        scheduled_partitions=0,
        first_monotonic_ns=first_ns,
        last_monotonic_ns=time.monotonic_ns(),
        real_time=real_time,
    )


def _named(workload: Workload, number: int) -> Workload:
    tensors = (replace(each, name=numbered(each.name, number)) for each in workload.tensors)
    return replace(workload, tensors=tuple(tensors))


def _trained(
    workload: Workload, config: WorkerConfig, front: Any, path: str
) -> tuple[list[int], str]:
    """The starts of the measured iterations and their end, and the digest of all parameters.

    What was made for it is garbage when this returns, but for what the front still drains.
    """
    import byteprophet.torch as torch_front  # loads BytePS, which usage errors need not wait for

    model = PacedModel(workload, front.rank())
    named = list(model.named_tensors())
    options: dict[str, Any] = {"strategy": path} if path else {}
    if isinstance(front, SyncFront):
        options["sync"] = front.runtime
    optimizer: Any = torch_front.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        named_parameters=named,
        model=model,
        **options,
    )
    signal = torch.zeros(workload.batch_size, 0)
    starts_ns: list[int] = []
    for iteration in range(config.updates):
        if iteration >= config.warmup_iterations:
            starts_ns.append(time.monotonic_ns())
        if front.rank() == 0:
            announce(iteration)
        optimizer.zero_grad()
        model(signal).sum().backward()
        with at_normal_priority():
            optimizer.step()
    starts_ns.append(time.monotonic_ns())
    optimizer.finish()
    tensors = ((name, values.detach().numpy()) for name, values in named)
    return starts_ns, parameters_sha256(tensors)


def _make_front(config: WorkerConfig) -> Any:
    return SyncFront(config) if config.scheduler is None else import_front(config)


def main(arguments: Sequence[str]) -> int:
    """Run the worker that the environment describes, and return the exit status."""
    return run_worker("byteprophet.paced.in_turn", arguments, _make_front, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
