"""FSDP2's transfers on CPUs, which overlap computation there as they do on GPUs.

On a CPU there are no streams, so unmodified FSDP2 stops during each transfer. Here, transfers go on
while the model computes, by means of FSDP2's own interfaces. All-gathers begin before their units
are called (``unshard(async_op=True)``). Reduce-scatters continue during the backward pass
(``set_custom_reduce_scatter``), until ``Reductions.finish``.

Gloo's reduce-scatter is an all-reduce inside, with twice the bytes. So ranks exchange shards in an
all-to-all by default, and each rank sums the shards that it receives, in the order of the ranks.

Ranks match the collectives of a group by their order alone. A rank may leave out a unit in one
forward pass, and so hand over the gradients of units in another order than the other ranks. So
reduce-scatters begin in an order that is the same everywhere, whatever the order in which gradients
are ready.

Threads: autograd's, which is the training thread on a CPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor

from byteprophet.observe.collective_spans import record_until_done
from byteprophet.observe.span_log import SpanLog
from byteprophet.torch.sync.single_tensors import all_gather, reduce_scatter

ALL_GATHER = "all-gather "
REDUCE_SCATTER = "reduce-scatter "
"""What the names of spans of collectives begin with; the unit, or its place, follows."""


class _Transfers:
    """The common part of FSDP2's interfaces for custom all-gathers and reduce-scatters."""

    def allocate(
        self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Allocate memory for a transfer."""
        return torch.empty(*size, dtype=dtype, device=device)


class Reductions:
    """Asynchronous reduce-scatters of units, whose results must not be read before ``finish``.

    ``spans``: records them; None: nobody does. ``group``: the ranks; None: FSDP2's. ``by_all_to_
    all``: see above. ``begins`` is called when the first unit after a ``finish`` is handed over.
    ``at_most``: so many are in flight, and the backward pass waits for the oldest one before
    another begins, so that their buffers take no more memory; 0: any number.
    """

    def __init__(
        self,
        spans: SpanLog | None = None,
        *,
        by_all_to_all: bool = True,
        group: distributed.ProcessGroup | None = None,
        begins: Callable[[], None] = lambda: None,
        at_most: int = 0,
    ) -> None:
        self.spans = spans
        self._at_most = at_most
        self._by_all_to_all = by_all_to_all
        self._group = group
        self._begins = begins
        self.order: tuple[int, ...] = ()  # units, as their reduce-scatters begin; none: when ready
        self.handed_over: list[int] = []  # units, since the last ``finish``
        self.keeps_all = False  # buffers as long as it may, as if the network were slow
        self._begun = 0
        self._ready: dict[int, deque[_Reduction]] = {}
        self._in_flight: deque[_Reduction] = deque()
        self._earlier: list[tuple[Tensor, Tensor]] = []

    def of(self, unit: int, parameters: Sequence[Tensor]) -> ReduceScatter:
        """The reduce-scatter of a unit, whose sharded parameters are ``parameters``."""
        return ReduceScatter(self, unit, parameters)

    def hand_over(self, unit: int, reduction: _Reduction) -> None:
        """Average the gradients of ``unit`` when its turn has come."""
        if not self.handed_over:
            self._begins()
        self.handed_over.append(unit)
        while self._in_flight and not self.keeps_all and self._in_flight[0].is_completed():
            self._in_flight.popleft().end()
        # Gradients are divided before, because that overlaps the backward pass.
        reduction.sent.mul_(1.0 / reduction.group.size())
        self._ready.setdefault(unit, deque()).append(reduction)
        if not self.order:
            self._begin(unit)
        while self._begun < len(self.order) and self._ready.get(self.order[self._begun]):
            self._begin(self.order[self._begun])

    def keep_earlier(self, parameter: Tensor) -> None:
        """Take away the gradient of ``parameter`` until ``finish`` adds the new one to it."""
        gradient = parameter.grad
        if gradient is not None:
            self._earlier.append((parameter, gradient))
            parameter.grad = None

    def finish(self) -> None:
        """Wait for the reduce-scatters of all units that were handed over."""
        for unit in (*self.order, *self._ready):
            while self._ready.get(unit):
                self._begin(unit)
        while self._in_flight:
            self._in_flight.popleft().end()
        while self._earlier:
            parameter, earlier = self._earlier.pop()
            later, parameter.grad = parameter.grad, earlier
            if later is not None:
                _local(earlier).add_(_local(later))
        self._begun = 0
        self.handed_over.clear()

    def _begin(self, unit: int) -> None:
        while self._at_most and len(self._in_flight) >= self._at_most:
            self._in_flight.popleft().end()
        reduction = self._ready[unit].popleft()
        label = f"{REDUCE_SCATTER}{self._begun}"
        reduction.begin(self._group, self._by_all_to_all)
        if self.spans is not None:
            record_until_done(self.spans, reduction.work, label, reduction.sent.nbytes)
        self._begun += 1
        self._in_flight.append(reduction)


class ReduceScatter(_Transfers):
    """FSDP2's reduce-scatter of one unit."""

    def __init__(self, reductions: Reductions, unit: int, parameters: Sequence[Tensor]) -> None:
        self._reductions = reductions
        self._unit = unit
        self._parameters = parameters

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: distributed.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Begin to average over ``group``; ``op`` is ignored.

        FSDP2 goes on as if ``output_tensor`` had the result. It would add that to gradients that
        are there already, so these are taken away before.
        """
        for parameter in self._parameters:
            self._reductions.keep_earlier(parameter)
        reduction = _Reduction(group, input_tensor, output_tensor)
        self._reductions.hand_over(self._unit, reduction)


class Gathers(_Transfers):
    """FSDP2's all-gathers of one unit, with a span each while ``spans`` is given.

    The span belongs to the iteration that is ``ahead`` iterations after the current one.
    """

    def __init__(self, spans: SpanLog | None, unit: int, ahead: int = 0) -> None:
        self.spans = spans
        self._label = f"{ALL_GATHER}{unit}"
        self._ahead = ahead

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: distributed.ProcessGroup,
        async_op: bool = False,
    ) -> distributed.Work | None:
        """Begin the all-gather."""
        work: distributed.Work | None = all_gather(
            output_tensor, input_tensor, group=group, async_op=async_op
        )
        if work is not None and self.spans is not None:
            size_bytes = output_tensor.nbytes
            record_until_done(self.spans, work, self._label, size_bytes, ahead=self._ahead)
        return work


@dataclass
class _Reduction:
    """A reduce-scatter of ``sent`` into ``output``, with the results in ``group``'s order.

    Once it has begun, ``shares`` holds the shards that are received from all ranks, to be summed;
    None: there is nothing to sum.
    """

    group: distributed.ProcessGroup
    sent: Tensor
    output: Tensor
    work: Any = None
    shares: Tensor | None = None

    def begin(self, group: distributed.ProcessGroup | None, by_all_to_all: bool) -> None:
        """Begin the transfer, over ``group`` if it is given."""
        over = self.group if group is None else group
        if by_all_to_all:
            received = torch.empty_like(self.sent)
            self.work = distributed.all_to_all_single(
                received, self.sent, group=over, async_op=True
            )
            self.shares = received.view(over.size(), -1)
        else:
            self.work = reduce_scatter(self.output, self.sent, group=over, async_op=True)

    def is_completed(self) -> bool:
        """Whether the transfer is over."""
        return bool(self.work.is_completed())

    def end(self) -> None:
        """Wait for the transfer, and put the result into ``output``."""
        self.work.wait()
        if self.shares is not None:
            torch.sum(self.shares, dim=0, out=self.output)


def _local(gradient: Tensor) -> Tensor:
    """The shard of ``gradient`` on this rank, to be changed in place."""
    assert isinstance(gradient, DTensor)
    with torch.no_grad():
        return gradient.to_local()
