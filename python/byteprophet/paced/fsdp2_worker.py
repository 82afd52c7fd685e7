"""The paced worker process of a job under FSDP2 (``fully_shard``) over gloo.

``python -m byteprophet.paced.fsdp2_worker CONFIG.toml``

Trains the same paced model as ``worker.py`` and writes the same results. Layers are sharded in
units (``unit_layers``, ``unit_bytes``). Units keep their parameters from forward to backward, so
that these are all-gathered once per iteration.

On a CPU there are no streams, so unmodified FSDP2 stops during each transfer. With
``asynchronous``, transfers overlap compute as on a GPU, by means of FSDP2's own interfaces. The
all-gathers of all units begin at the start of forward (``unshard(async_op=True)``). The
reduce-scatters continue during backward (``set_custom_reduce_scatter``), until the optimizer steps.
Gloo's reduce-scatter is an all-reduce inside, with twice the bytes. With ``all_to_all``, ranks
exchange shards in an all-to-all instead, and this worker sums them.
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

from byteprophet.job import Bucket, Strategy
from byteprophet.job.strategy import FSDP2
from byteprophet.observe.span_log import SpanLog
from byteprophet.observe.strategy_recording import record_strategy
from byteprophet.paced.collective_front import CollectiveFront, leave, record_until_done
from byteprophet.paced.model import PacedLayer, PacedModel
from byteprophet.paced.worker import run_worker
from byteprophet.timeline.tables import Kind


class Fsdp2Front(CollectiveFront):
    """Uses FSDP2: every rank owns a shard of each parameter, its gradient and its state."""

    runtimes = ("fsdp2",)

    def wrap(self, model: PacedModel) -> nn.Module:
        """Shard ``model`` in place, so that its parameters are DTensors, and return it."""
        self._reductions = _Reductions(bool(self.settings["all_to_all"]), self.spans)
        custom: Any = self._reductions  # PyTorch's base class for it has no public name
        asynchronous = bool(self.settings["asynchronous"])
        mesh = init_device_mesh("cpu", (self.size(),))
        layers = [layer for layer in model.children() if isinstance(layer, PacedLayer)]
        heads: list[FSDPModule] = []
        members = list(units(layers, self.settings["unit_layers"], self.settings["unit_bytes"]))
        for number, unit in enumerate(members):
            sharded = fully_shard(list[nn.Module](unit), mesh=mesh, reshard_after_forward=False)
            heads.append(sharded[0])
            if self.spans is not None and asynchronous:
                gathers: Any = _RecordedGathers(self.spans, number)
                sharded[0].set_custom_all_gather(gathers)
                _record_waits(unit[0], self.spans, f"unit {number}")
            # Gloo cannot average, so gradients are summed, and divided separately.
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


class _Transfers:
    """The common part of FSDP2's interfaces for custom all-gathers and reduce-scatters."""

    def allocate(
        self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Allocate memory for a transfer."""
        return torch.empty(*size, dtype=dtype, device=device)


class _Reductions(_Transfers):
    """Asynchronous reduce-scatters, whose results must not be read before ``finish``.

    With ``by_all_to_all``, ranks exchange shards of gradients, and each rank sums the shards that
    it receives. The training thread does this when it begins a later reduce-scatter, so it overlaps
    backward.
    """

    def __init__(self, by_all_to_all: bool, spans: SpanLog | None) -> None:
        self._by_all_to_all = by_all_to_all
        self._spans = spans
        self._begun = 0  # in this iteration
        self._in_flight: deque[_InFlight] = deque()

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: distributed.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Begin to average over ``group``; ``op`` is ignored.

        Gradients are divided first, because that overlaps backward.
        """
        while self._in_flight and self._in_flight[0].work.is_completed():
            self._in_flight.popleft().end()
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
        if self._spans is not None:
            label = f"reduce-scatter {self._begun}"
            record_until_done(self._spans, work, label, input_tensor.nbytes)
        self._begun += 1
        self._in_flight.append(_InFlight(work, input_tensor, output_tensor, shares))

    def finish(self) -> None:
        """Wait for all transfers that were begun."""
        while self._in_flight:
            self._in_flight.popleft().end()
        self._begun = 0


def _record_waits(layer: nn.Module, spans: SpanLog, label: str) -> None:
    """Add a WAIT span for FSDP2's pre-forward hook of ``layer``, the first one of a unit."""
    begin_ns = 0

    def before(*_: Any) -> None:
        nonlocal begin_ns
        begin_ns = spans.clock()

    def after(*_: Any) -> None:
        spans.add(Kind.WAIT, label, begin_ns, spans.clock())

    layer.register_forward_pre_hook(before, prepend=True)
    layer.register_forward_pre_hook(after)


class _RecordedGathers(_Transfers):
    """FSDP2's all-gathers, with a span each.

    The span belongs to the next iteration, because a unit is all-gathered just before its forward
    pass begins.
    """

    def __init__(self, spans: SpanLog, unit: int) -> None:
        self._spans = spans
        self._label = f"all-gather {unit}"

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: distributed.ProcessGroup,
        async_op: bool = False,
    ) -> distributed.Work | None:
        """Begin the all-gather."""
        work: distributed.Work | None = distributed.all_gather_single(
            output_tensor, input_tensor, group=group, async_op=async_op
        )
        if work is not None:
            size_bytes = output_tensor.nbytes
            record_until_done(self._spans, work, self._label, size_bytes, ahead=1)
        return work


@dataclass(frozen=True)
class _InFlight:
    """A transfer in flight that reads ``sent``.

    ``shares`` holds the shards received from all ranks, to be summed, or None if there is nothing
    to sum.
    """

    work: distributed.Work
    sent: torch.Tensor
    output: torch.Tensor
    shares: torch.Tensor | None

    def end(self) -> None:
        """Wait for the transfer, and put the result into ``output``."""
        self.work.wait()
        if self.shares is not None:
            torch.sum(self.shares, dim=0, out=self.output)


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
