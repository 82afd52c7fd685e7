"""The paced worker process of a job under our merged-gradient WFBP (Shi et al., INFOCOM 2019).

``python -m byteprophet.paced.wfbp_worker CONFIG.toml``

Trains the same paced model as ``worker.py`` and writes the same results. Gradients are all-reduced
in buckets during backward, as in DistributedDataParallel. But buckets depend on the model and the
link: a gradient waits for the next one only if that saves more than it costs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import distributed, nn

from byteprophet.allreduce.groups import fixed_size, merged_gradient
from byteprophet.allreduce.timing import Link, Timing
from byteprophet.job import Bucket, Strategy
from byteprophet.job.strategy import WFBP
from byteprophet.observe.collective_spans import record_until_done
from byteprophet.observe.span_log import SpanLog
from byteprophet.observe.strategy_recording import record_strategy
from byteprophet.paced.collective_front import CollectiveFront, leave
from byteprophet.paced.collective_settings import PAYLOAD
from byteprophet.paced.model import PacedModel
from byteprophet.paced.worker import run_worker

_UNKNOWN_BPS = 10**15  # a link so fast that only messages cost


class WfbpFront(CollectiveFront):
    """All-reduces buckets while backward runs. The optimizer waits for all of them."""

    runtimes = ("wfbp",)

    def wrap(self, model: PacedModel) -> nn.Module:
        """Add hooks to ``model`` that collect its gradients, and return it."""
        parameters = list(model.parameters())
        link = Link(
            self.size(),
            self.settings[PAYLOAD] or _UNKNOWN_BPS,
            self.settings["message_cost_ns"],
        )
        timing = Timing.of_workload(self.workload, link)
        size_bytes = self.settings["bucket_bytes"]
        buckets = fixed_size(timing, size_bytes) if size_bytes else merged_gradient(timing)
        self._buckets = Buckets(
            [[parameters[place] for place in bucket] for bucket in buckets], self.spans
        )
        if self.rank() == 0:
            names = [parameter.name for parameter in timing.parameters]
            named = (
                Bucket(tuple(names[place] for place in bucket), number, number)
                for number, bucket in enumerate(buckets)
            )
            record_strategy(
                Strategy(WFBP, tuple(named), size_bytes),
                {tensor.name: tensor.size_bytes for tensor in self.workload.tensors},
                since=1,
            )
        return model

    def DistributedOptimizer(  # noqa: N802 (BytePS' name)
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
    ) -> torch.optim.Optimizer:
        """Make ``optimizer`` wait for all gradients before it steps, and return it."""
        self.wait_before_steps(optimizer, self._buckets.finish)
        return super().DistributedOptimizer(optimizer, named_parameters)


class Buckets:
    """All-reduces gradients in buckets. ``buckets``: the parameters of each, in sending order.

    The all-reduce of a bucket starts when the bucket is complete and all buckets before it have
    started, so that all ranks use the same order. Every iteration must call ``finish``. After it,
    each ``grad`` is the average over all ranks, and lies in the memory of its bucket. Only one
    thread may use this at a time, that of backward or of ``finish``. All-reduces are recorded in
    ``spans`` if it is given.
    """

    def __init__(
        self, buckets: Sequence[Sequence[torch.Tensor]], spans: SpanLog | None = None
    ) -> None:
        self._spans = spans
        self._buckets = [_Bucket(parameters) for parameters in buckets]
        self._left = 0
        self._works: list[distributed.Work] = []
        for bucket in self._buckets:
            for place, parameter in enumerate(bucket.parameters):
                add_hook: Any = parameter.register_post_accumulate_grad_hook
                add_hook(self._hook(bucket, place))

    def finish(self) -> None:
        """Wait until all gradients of the iteration are averaged."""
        if self._left != len(self._buckets):
            missing = len(self._buckets) - self._left
            raise RuntimeError(f"buckets without all gradients, or behind such buckets: {missing}")
        for work in self._works:
            work.wait()
        self._works.clear()
        self._left = 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)

    def _hook(self, bucket: _Bucket, place: int) -> Any:
        def arrived(parameter: torch.Tensor) -> None:
            bucket.take(parameter, place)
            while self._left < len(self._buckets) and not self._buckets[self._left].missing:
                memory = self._buckets[self._left].memory
                work = distributed.all_reduce(memory, async_op=True)
                assert work is not None
                if self._spans is not None:
                    record_until_done(self._spans, work, f"bucket {self._left}", memory.nbytes)
                self._works.append(work)
                self._left += 1

        return arrived


class _Bucket:
    """Memory for the gradients of ``parameters``, of which ``missing`` have not arrived yet."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.parameters = list(parameters)
        self.missing = len(self.parameters)
        self.memory = torch.empty(sum(parameter.numel() for parameter in parameters))
        pieces = torch.split(self.memory, [parameter.numel() for parameter in parameters])
        self._views = [
            piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)
        ]

    def take(self, parameter: torch.Tensor, place: int) -> None:
        """Copy the gradient here, divided by the number of ranks. This overlaps backward."""
        view = self._views[place]
        assert parameter.grad is not None
        torch.mul(parameter.grad, 1.0 / distributed.get_world_size(), out=view)
        parameter.grad = view
        self.missing -= 1


def main(arguments: Sequence[str]) -> int:
    """Run the worker that the environment describes, and return the exit status."""
    return run_worker("byteprophet.paced.wfbp_worker", arguments, WfbpFront)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
