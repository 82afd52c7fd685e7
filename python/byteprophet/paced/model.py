"""A workload as a ``torch.nn.Module`` that takes the workload's time and makes its gradients.

There is one submodule per tensor, in forward order, each with one parameter, so that hooks can wait
for parameters layer by layer. In forward, a layer waits for its forward time. In backward, it waits
for its backward time and returns its gradient. Making the gradient is part of that time. All
gradients of a burst are returned by one layer, so that they become ready together. It is the layer
of the burst that forward runs first and backward runs last. The other layers return none.

Names: module names must not contain dots, but tensor names usually do. Also, one tensor's name may
be a module path that is part of another's. So a submodule's name consists of its position and the
tensor's name with slashes: ``layer1.0.conv1.weight`` at position 3 (from 0) has the state_dict key
``00003:layer1/0/conv1/weight.values``. The order of ``state_dict`` is forward order.
``PacedModel.named_tensors`` gives the parameters with the tensors' own names. Pass these as
``named_parameters`` and to broadcasts.

The model works with any optimizer and wrapper: parameters are leaves of shape (elements,), and
gradients arrive through autograd. Each gradient is new memory; no ``.grad`` is written to.

A paced model records its own spans. Those of layers follow the time line of the device that the
model stands for: each is as long as the layer's stated time. They have a lane of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from byteprophet.observe.span_log import SpanLog
from byteprophet.paced.gradient import Patterns
from byteprophet.paced.making import GradientMaker, Quota, quotas
from byteprophet.paced.pacing import AHEAD_NS, Pacer
from byteprophet.timeline.tables import Kind
from byteprophet.workload.model import Tensor, Workload

_LANE = "device"


class PacedModel(nn.Module):
    """The paced model of rank ``rank``.

    Iterations are the forward passes that autograd records, counted from 0. A backward pass makes
    the gradients of the iteration of its forward pass.
    """

    def __init__(self, workload: Workload, rank: int) -> None:
        super().__init__()
        patterns = Patterns(max(tensor.elements for tensor in workload.tensors))
        self._pacer = Pacer()
        self._maker = GradientMaker(workload.tensors, patterns, rank)
        self._iteration = 0
        self._spans: SpanLog | None = None
        self._is_timed: Callable[[], bool] = _never
        self._names = [tensor.name for tensor in workload.tensors]
        own = quotas(workload)
        for burst in workload.bursts():
            members: list[PacedLayer] = []
            for position in burst:
                tensor = workload.tensors[position]
                initial = patterns.initial(tensor.name, tensor.elements)
                layer = PacedLayer(
                    position, tensor, own[position], initial, self._pacer, self._maker
                )
                self.add_module(f"{position:05d}:{tensor.name.replace('.', '/')}", layer)
                members.append(layer)
            members[0].burst = tuple(members)

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        """Run all layers on ``signal``, any small tensor.

        The result equals ``signal``. For autograd, it depends on every parameter.
        """
        if torch.is_grad_enabled():
            if self._spans is not None:
                self._spans.begin_iteration(self._iteration + 1)
            self._pacer.restart()
            self._maker.prepare(self._iteration)
            self._iteration += 1
        else:
            self._pacer.restart()
        self._pacer.ahead_ns = 0 if self._is_timed() else AHEAD_NS
        for layer in self.children():
            if type(layer._parameters.get("values")) is not nn.Parameter:
                self._pacer.catch_up()  # a front has marked or replaced it: it may be waited for
            signal = layer(signal)
        self._pacer.catch_up()
        return signal

    def record_spans(self, spans: SpanLog) -> None:
        """From now on, record iterations, counted from 1, and their layers in ``spans``."""
        self._spans = spans
        spans.told_by_model = True
        for layer in self._layers():
            layer.spans = spans

    def keep_step_while(self, is_timed: Callable[[], bool]) -> None:
        """Let the thread not run ahead in a forward pass before which ``is_timed`` returns True.

        Somebody then measures, in this thread, how long each layer takes.
        """
        self._is_timed = is_timed

    def take_times_of(self, workload: Workload) -> None:
        """Use the times of ``workload`` from now on. Its tensors must otherwise be the same.

        Call this between iterations.
        """
        changed = zip(self._layers(), workload.tensors, quotas(workload), strict=True)
        for layer, tensor, quota in changed:
            layer.tensor = tensor
            layer.quota = quota

    def named_tensors(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields the tensors' own names and the parameters, in forward order."""
        yield from zip(self._names, self.parameters(), strict=True)

    def _layers(self) -> Iterator[PacedLayer]:
        return (layer for layer in self.children() if isinstance(layer, PacedLayer))


def _never() -> bool:
    return False


class PacedLayer(nn.Module):
    """The layer of the tensor at ``position``.

    In the layer that returns a burst's gradients, ``burst`` holds the layers of the burst, itself
    first. In the others, it is empty.
    """

    def __init__(
        self,
        position: int,
        tensor: Tensor,
        quota: Quota,
        initial: torch.Tensor,
        pacer: Pacer,
        maker: GradientMaker,
    ) -> None:
        super().__init__()
        self.position = position
        self.tensor = tensor
        self.quota = quota
        self.pacer = pacer
        self.maker = maker
        self.burst: tuple[PacedLayer, ...] = ()
        self.spans: SpanLog | None = None
        self.values = nn.Parameter(initial)

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        """Wait for the layer's forward time, and return a copy of ``signal``."""
        self.pacer.begin_forward()
        parameters = [layer._parameters["values"] for layer in self.burst]
        result: torch.Tensor = cast(Any, _Paced).apply(signal, self, *parameters)
        ran = self.pacer.end()
        if torch.is_grad_enabled():
            self.record(Kind.FORWARD, ran, self.maker.iteration, 0)
        return result

    def record(self, kind: Kind, ran: tuple[int, int], iteration: int, size_bytes: int) -> None:
        """Record that the device ran this layer in ``iteration``, counted from 0.

        ``ran`` holds begin and end. ``size_bytes`` is the size of the gradients that it returned.
        """
        if self.spans is not None:
            self.spans.add(
                kind,
                self.tensor.name,
                *ran,
                iteration=iteration + 1,
                size_bytes=size_bytes,
                lane=self.spans.lane(_LANE),
            )


class _Paced(torch.autograd.Function):
    """Returns its first input, and takes a layer's time in forward and in backward.

    The parameters are inputs only so that autograd requests their gradients. Their values are not
    read.
    """

    @staticmethod
    def forward(
        ctx: Any, signal: torch.Tensor, layer: PacedLayer, *_parameters: torch.Tensor
    ) -> torch.Tensor:
        ctx.layer = layer
        ctx.iteration = layer.maker.iteration
        make_piece = partial(layer.maker.make_piece, layer.quota.forward)
        layer.pacer.wait(layer.tensor.forward_ns, make_piece, layer.pacer.ahead_ns)
        return signal.clone()

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        layer: PacedLayer = ctx.layer
        layer.pacer.begin_backward()
        maker, backward_order = layer.maker, reversed(layer.burst)
        gradients = [maker.take(member.position, ctx.iteration) for member in backward_order]
        make_piece = partial(maker.make_piece, layer.quota.backward)
        layer.pacer.wait(layer.tensor.backward_ns, make_piece)
        ran = layer.pacer.end()
        if layer.spans is not None:
            size_bytes = sum(gradient.nbytes for gradient in gradients)
            layer.record(Kind.BACKWARD, ran, ctx.iteration, size_bytes)
        return (*outputs, None, *gradients[::-1])
