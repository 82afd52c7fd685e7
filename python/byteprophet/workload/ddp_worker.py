"""The paced worker process of an all-reduce job.

``python -m byteprophet.workload.ddp_worker CONFIG.toml``

Trains the same paced model as ``worker.py`` and writes the same results, under
``DistributedDataParallel`` over gloo, as it comes. Rank and peers are those that torchrun, or the
launcher, puts into the environment. Recorded are the model's own spans, its updates, and the
collectives of its buckets.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from byteprophet.observe.span_log import SpanLog
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.timeline.tables import Kind
from byteprophet.workload import ddp_settings
from byteprophet.workload.worker import run_worker
from byteprophet.workload.worker_config import WorkerConfig


class DdpFront:
    """What ``worker.work`` asks of ``byteps.torch``, by torch.distributed."""

    def __init__(self, settings: Mapping[str, int]) -> None:
        self._settings = ddp_settings.resolve(settings)
        self._spans: SpanLog | None = None

    def init(self) -> None:
        """Join the job."""
        timeout_s = RuntimeSettings.from_environment().timeout_s
        distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))

    def rank(self) -> int:
        """Of this process."""
        return distributed.get_rank()

    def size(self) -> int:
        """How many ranks there are."""
        return distributed.get_world_size()

    def wrap(self, model: nn.Module, spans: SpanLog | None) -> nn.Module:
        """What is trained in place of ``model``."""
        wrapped = DistributedDataParallel(
            model,
            bucket_cap_mb=self._settings["bucket_cap_mb"],
            gradient_as_bucket_view=bool(self._settings["gradient_as_bucket_view"]),
            static_graph=bool(self._settings["static_graph"]),
        )
        self._spans = spans
        if spans is not None:
            # Here, because byteprophet.torch loads BytePS, which nothing else needs.
            from byteprophet.torch import ddp_spans

            ddp_spans.attach(wrapped, spans)
        return wrapped

    def DistributedOptimizer(  # noqa: N802 (BytePS' name)
        self, optimizer: torch.optim.Optimizer, named_parameters: object
    ) -> torch.optim.Optimizer:
        """``optimizer`` itself: backward returns when gradients are reduced."""
        if self._spans is not None:
            _record_steps(optimizer, self._spans)
        return optimizer

    def broadcast_parameters(self, parameters: Mapping[str, torch.Tensor], root_rank: int) -> None:
        """Give all ranks those of ``root_rank``."""
        for values in parameters.values():
            distributed.broadcast(values, root_rank)

    def shutdown(self) -> None:
        """Leave the job."""
        distributed.destroy_process_group()


def _record_steps(optimizer: torch.optim.Optimizer, spans: SpanLog) -> None:
    begun_ns = 0

    def before(*_: Any) -> None:
        nonlocal begun_ns
        begun_ns = spans.clock()

    def after(*_: Any) -> None:
        spans.add(Kind.UPDATE, "optimizer", begun_ns, spans.clock())

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def _front(config: WorkerConfig) -> DdpFront:
    return DdpFront(config.settings)


def main(arguments: Sequence[str]) -> int:
    """Run the worker that the environment describes; returns the exit status."""
    return run_worker("byteprophet.workload.ddp_worker", arguments, _front)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
