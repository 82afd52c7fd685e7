"""The paced worker process of a job under FSDP2 (``fully_shard``) over gloo.

``python -m byteprophet.paced.fsdp2_worker CONFIG.toml``

Trains the same paced model as ``worker.py`` and writes the same results. Layers are sharded in
units (``unit_layers``, ``unit_bytes``). Units keep their parameters from forward to backward, so
that these are all-gathered once per iteration.

With ``asynchronous``, transfers overlap compute as on a GPU (``torch/fsdp2/transfers.py``), until
the optimizer steps. Without, FSDP2 is unmodified, and stops during each transfer. Gloo's
reduce-scatter has twice the bytes that are needed. With ``all_to_all``, an all-to-all takes its
place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from byteprophet.job import Bucket, Strategy
from byteprophet.job.strategy import FSDP2
from byteprophet.observe.strategy_recording import record_strategy
from byteprophet.paced.collective_front import CollectiveFront, leave
from byteprophet.paced.model import PacedLayer, PacedModel
from byteprophet.paced.worker import run_worker
from byteprophet.torch.fsdp2.transfers import Gathers, Reductions
from byteprophet.torch.fsdp2.waits import record_waits


class Fsdp2Front(CollectiveFront):
    """Uses FSDP2: every rank owns a shard of each parameter, its gradient and its state."""

    runtimes = ("fsdp2",)

    def wrap(self, model: PacedModel) -> nn.Module:
        """Shard ``model`` in place, so that its parameters are DTensors, and return it."""
        all_to_all = bool(self.settings["all_to_all"])
        self._reductions = Reductions(self.spans, by_all_to_all=all_to_all)
        asynchronous = bool(self.settings["asynchronous"])
        mesh = init_device_mesh("cpu", (self.size(),))
        layers = [layer for layer in model.children() if isinstance(layer, PacedLayer)]
        heads: list[FSDPModule] = []
        members = list(units(layers, self.settings["unit_layers"], self.settings["unit_bytes"]))
        for number, unit in enumerate(members):
            sharded = fully_shard(list[nn.Module](unit), mesh=mesh, reshard_after_forward=False)
            heads.append(sharded[0])
            if self.spans is not None and asynchronous:
                # A unit is all-gathered just before the iteration of its forward pass begins.
                gathers: Any = Gathers(self.spans, number, ahead=1)
                sharded[0].set_custom_all_gather(gathers)
                record_waits(unit[0], self.spans, f"unit {number}")
            # Gloo cannot average, so gradients are summed, and divided separately.
            sharded[0].set_force_sum_reduction_for_comms(True)
            if asynchronous:
                sharded[0].set_gradient_divide_factor(1.0)
                # PyTorch's base class for it has no public name.
                custom: Any = self._reductions.of(number, [each.values for each in unit])
                sharded[0].set_custom_reduce_scatter(custom)
        fully_shard(model, mesh=mesh, reshard_after_forward=False)

        def gather(*_: Any) -> None:
            for head in heads:
                head.unshard(async_op=True)

        if asynchronous:
            model.register_forward_pre_hook(gather)
        if self.rank() == 0 and asynchronous:
            self._record_units([[layer.tensor.name for layer in unit] for unit in members])
        return model

    def _record_units(self, members: Sequence[Sequence[str]]) -> None:
        """Record the strategy: all-gathers in forward order, reduce-scatters in reverse order."""
        count = len(members)
        units = (
            Bucket(tuple(names), 2 * count - number, gather_place=number, sharded=True)
            for number, names in enumerate(members)
        )
        record_strategy(
            Strategy(FSDP2, tuple(units), self.settings["unit_bytes"]),
            {tensor.name: tensor.size_bytes for tensor in self.workload.tensors},
            since=1,
        )

    def DistributedOptimizer(  # noqa: N802 (BytePS' name)
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
    ) -> torch.optim.Optimizer:
        """Make ``optimizer`` wait for all gradients before it steps, and return it."""
        for group in optimizer.param_groups:
            group["foreach"] = True  # without foreach, each DTensor costs 0.1 ms
        self.wait_before_steps(optimizer, self._reductions.finish)
        return super().DistributedOptimizer(optimizer, named_parameters)

    def whole(self, values: torch.Tensor) -> torch.Tensor:
        """The whole of a sharded parameter."""
        assert isinstance(values, DTensor)
        full: torch.Tensor = values.full_tensor()
        return full.detach()


def units(layers: Iterable[PacedLayer], least_layers: int, least_bytes: int) -> Iterator[list[Any]]:
    """Divide ``layers``, in forward order, into units of neighbours.

    Each unit has at least ``least_layers`` layers and ``least_bytes`` bytes, but the last one may
    have less. Bursts are not divided, because one layer has all gradients of its burst.
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
    """Run the worker that the environment describes, and return the exit status."""
    return run_worker("byteprophet.paced.fsdp2_worker", arguments, Fsdp2Front)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
