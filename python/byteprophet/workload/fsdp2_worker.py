"""The paced worker process of a job under FSDP2 (``fully_shard``) over gloo.

``python -m byteprophet.workload.fsdp2_worker CONFIG.toml``

Trains the same paced model as ``worker.py`` and writes the same results. Layers are sharded in
units (``unit_layers``, ``unit_bytes``), which keep their parameters from forward to backward, so
that these are gathered once per iteration.

On a CPU there are no streams: as it comes, FSDP2 stands still during each transfer. With
``asynchronous`` it does what it does on a GPU, by the means it has for that: all units are
gathered from the start of forward on (``unshard(async_op=True)``), and gradients are reduced while
backward goes on (``set_custom_reduce_scatter``), until the optimizer steps. Gloo's reduce-scatter
is an all-reduce inside, with twice the bytes; with ``all_to_all`` ranks exchange their shares in
an all-to-all and sum them here.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from byteprophet.workload.collective_front import CollectiveFront, leave
from byteprophet.workload.paced import PacedLayer, PacedModel
from byteprophet.workload.worker import run_worker


class Fsdp2Front(CollectiveFront):
    """Every rank has a part of each parameter, and its gradient and update."""

    runtimes = ("fsdp2",)

    def wrap(self, model: PacedModel) -> nn.Module:
        """``model``, sharded in place; its parameters are then DTensors."""
        self._reductions = _Reductions(bool(self.settings["all_to_all"]))
        custom: Any = self._reductions  # PyTorch's base class for it has no public name
        asynchronous = bool(self.settings["asynchronous"])
        mesh = init_device_mesh("cpu", (self.size(),))
        layers = [layer for layer in model.children() if isinstance(layer, PacedLayer)]
        heads: list[FSDPModule] = []
        for unit in units(layers, self.settings["unit_layers"], self.settings["unit_bytes"]):
            sharded = fully_shard(list[nn.Module](unit), mesh=mesh, reshard_after_forward=False)
            heads.append(sharded[0])
            # Gloo has no averages: sums, divided afterwards.
            sharded[0].set_force_sum_reduction_for_comms(True)
            if asynchronous:
                sharded[0].set_gradient_divide_factor(1.0)
                sharded[0].set_custom_reduce_scatter(custom)
        fully_shard(model, mesh=mesh, reshard_after_forward=False)

        def gather(*_: Any) -> None:
            for head in heads:
                head.unshard(async_op=True)

        if asynchronous:
            model.register_forward_pre_hook(gather)
        return model

    def DistributedOptimizer(  # noqa: N802 (BytePS' name)
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
    ) -> torch.optim.Optimizer:
        """``optimizer``, which waits for the gradients before it steps."""
        for group in optimizer.param_groups:
            group["foreach"] = True  # one by one, DTensors cost 0.1 ms each
        self.wait_before_steps(optimizer, self._reductions.finish)
        return super().DistributedOptimizer(optimizer, named_parameters)

    def whole(self, values: torch.Tensor) -> torch.Tensor:
        """All of a sharded parameter."""
        assert isinstance(values, DTensor)
        full: torch.Tensor = values.full_tensor()
        return full.detach()


class _Reductions:
    """Reduce-scatters that run on until ``finish``; their results must not be read before.

    With ``by_all_to_all``, ranks exchange shares of gradients and add up what came for them. They
    do so in the thread that trains, when there is a next one to begin, which backward hides.
    """

    def __init__(self, by_all_to_all: bool) -> None:
        self._by_all_to_all = by_all_to_all
        self._under_way: deque[_UnderWay] = deque()

    def allocate(
        self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Memory for a transfer."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: distributed.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Begin to average over ``group``, whatever ``op``. Divides first: backward hides that."""
        while self._under_way and self._under_way[0].work.is_completed():
            self._under_way.popleft().end()
        input_tensor.mul_(1.0 / group.size())
        if self._by_all_to_all:
            received = torch.empty_like(input_tensor)
            work = distributed.all_to_all_single(received, input_tensor, group=group, async_op=True)
            shares = received.view(group.size(), -1)
        else:
            work = distributed.reduce_scatter_single(
                output_tensor, input_tensor, group=group, async_op=True
            )
            shares = None
        assert work is not None
        self._under_way.append(_UnderWay(work, input_tensor, output_tensor, shares))

    def finish(self) -> None:
        """Wait for all that was begun."""
        while self._under_way:
            self._under_way.popleft().end()


@dataclass(frozen=True)
class _UnderWay:
    """A transfer from ``sent``; ``shares``: what came from each rank, to be added up."""

    work: distributed.Work
    sent: torch.Tensor
    output: torch.Tensor
    shares: torch.Tensor | None

    def end(self) -> None:
        """Wait for it, and have the result in ``output``."""
        self.work.wait()
        if self.shares is not None:
            torch.sum(self.shares, dim=0, out=self.output)


def units(layers: Iterable[PacedLayer], least_layers: int, least_bytes: int) -> Iterator[list[Any]]:
    """Neighbouring ``layers``, in forward order, in units of at least so many, and so many bytes.

    The last unit may have less. Bursts stay whole, as one layer has all gradients of its burst.
    """
    unit: list[PacedLayer] = []
    for layer in layers:
        size_bytes = sum(member.tensor.size_bytes for member in unit)
        if unit and layer.burst and len(unit) >= least_layers and size_bytes >= least_bytes:
            yield unit
            unit = []
        unit.append(layer)
    yield unit


def main(arguments: Sequence[str]) -> int:
    """Run the worker that the environment describes; returns the exit status."""
    return run_worker("byteprophet.workload.fsdp2_worker", arguments, Fsdp2Front)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
