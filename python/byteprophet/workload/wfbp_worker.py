"""The paced worker process of a job under merged-gradient WFBP (Shi et al., INFOCOM 2019), ours.

``python -m byteprophet.workload.wfbp_worker CONFIG.toml``

Trains the same paced model as ``worker.py`` and writes the same results. Gradients are all-reduced
under backward in buckets, like DistributedDataParallel's, but merged by what is known of the model
and the link: a gradient waits for the next one only where that saves more than it costs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import distributed, nn

from byteprophet.allreduce.groups import fixed_size, merged_gradient
from byteprophet.allreduce.timing import Link, Timing
from byteprophet.workload.collective_front import CollectiveFront, leave
from byteprophet.workload.collective_settings import PAYLOAD
from byteprophet.workload.paced import PacedModel
from byteprophet.workload.worker import run_worker

_UNKNOWN_BPS = 10**15  # a link so fast that only messages cost


class WfbpFront(CollectiveFront):
    """Buckets leave while backward runs; the optimizer waits for all of them."""

    runtimes = ("wfbp",)

    def wrap(self, model: PacedModel) -> nn.Module:
        """``model`` itself, its gradients collected by hooks."""
        parameters = list(model.parameters())
        link = Link(
            self.size(),
            self.settings[PAYLOAD] or _UNKNOWN_BPS,
            self.settings["message_cost_ns"],
        )
        timing = Timing.of_workload(self.workload, link)
        size_bytes = self.settings["buffer_bytes"]
        groups = fixed_size(timing, size_bytes) if size_bytes else merged_gradient(timing)
        self._buckets = Buckets([[parameters[place] for place in group] for group in groups])
        return model

    def DistributedOptimizer(  # noqa: N802 (BytePS' name)
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
    ) -> torch.optim.Optimizer:
        """``optimizer``, which waits for the gradients before it steps."""
        self.wait_before_steps(optimizer, self._buckets.finish)
        return super().DistributedOptimizer(optimizer, named_parameters)


class Buckets:
    """All-reduces gradients in ``groups``, one after the other in this order, as they come.

    A group leaves when it is complete and all before it have left, so that all ranks agree. On
    ``finish``, which every iteration needs, each ``grad`` is the average over the ranks; it lies in
    the memory of its bucket. One thread at a time, that of backward or of ``finish``.
    """

    def __init__(self, groups: Sequence[Sequence[torch.Tensor]]) -> None:
        self._buckets = [_Bucket(group) for group in groups]
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
            raise RuntimeError(f"buckets that lack gradients, or wait for such: {missing}")
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
                work = distributed.all_reduce(self._buckets[self._left].memory, async_op=True)
                assert work is not None
                self._works.append(work)
                self._left += 1

        return arrived


class _Bucket:
    """Memory for the gradients of ``parameters``; ``missing``: how many have not come yet."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.parameters = list(parameters)
        self.missing = len(self.parameters)
        self.memory = torch.empty(sum(parameter.numel() for parameter in parameters))
        pieces = torch.split(self.memory, [parameter.numel() for parameter in parameters])
        self._views = [
            piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)
        ]

    def take(self, parameter: torch.Tensor, place: int) -> None:
        """Move the gradient here; it is divided on the way, which backward hides."""
        view = self._views[place]
        assert parameter.grad is not None
        torch.mul(parameter.grad, 1.0 / distributed.get_world_size(), out=view)
        parameter.grad = view
        self.missing -= 1


def main(arguments: Sequence[str]) -> int:
    """Run the worker that the environment describes; returns the exit status."""
    return run_worker("byteprophet.workload.wfbp_worker", arguments, WfbpFront)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
