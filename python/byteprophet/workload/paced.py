"""A workload as a ``torch.nn.Module`` that takes the workload's time and makes its gradients.

One submodule per tensor, in forward order, each with one parameter, so that whatever waits for
parameters layer by layer (module hooks) has its layers. A layer waits out its forward time in
forward; in backward it waits out its backward time and hands over its gradient, whose making is
inside that time. The gradients of a burst are all returned by the layer of the burst that forward
runs first and backward last, so that they become ready together; the others return none.

Names. Module names must not contain dots and tensor names usually do, and two tensor names may be
one module path and a part of it. So a submodule is called by its position and the tensor's name
with slashes: ``layer1.0.conv1.weight`` at position 3 (from 0) has the state_dict key
``00003:layer1/0/conv1/weight.values``. The order of ``state_dict`` is forward order, and
``PacedModel.named_tensors`` gives the parameters under the tensors' own names, to be passed as
``named_parameters`` and to broadcasts.

Works with any optimizer and wrapper: parameters are leaves of shape (elements,), and gradients
arrive through autograd. Gradients are new memory each time; nobody's ``.grad`` is written to.

Recorded, a paced model tells its spans itself: layers by the time line of the device that it stands
for, each as long as it is stated to take, on a lane of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from byteprophet.observe.span_log import SpanLog
from byteprophet.timeline.tables import Kind
from byteprophet.workload.gradient import Patterns
from byteprophet.workload.making import GradientMaker, Quota, quotas
from byteprophet.workload.model import Tensor, Workload
from byteprophet.workload.pacing import Pacer

_LANE = "device"


class PacedModel(nn.Module):
    """The paced model of rank ``rank``.

    Its iteration number counts, from 0, the forward passes that autograd records; a backward pass
    makes the gradients of its forward pass' iteration.
    """

    def __init__(self, workload: Workload, rank: int) -> None:
        super().__init__()
        patterns = Patterns(max(tensor.elements for tensor in workload.tensors))
        self._pacer = Pacer()
        self._maker = GradientMaker(workload.tensors, patterns, rank)
        self._iteration = 0
        self._spans: SpanLog | None = None
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

        The result equals it, and depends on every parameter as far as autograd knows.
        """
        if torch.is_grad_enabled():
            if self._spans is not None:
                self._spans.begin_iteration(self._iteration + 1)
            self._pacer.restart()
            self._maker.prepare(self._iteration)
            self._iteration += 1
        else:
            self._pacer.restart()
        for layer in self.children():
            signal = layer(signal)
        return signal

    def record_spans(self, spans: SpanLog) -> None:
        """Tell ``spans`` of iterations, from 1, and their layers, from now on."""
        self._spans = spans
        spans.told_by_model = True
        for layer in self._layers():
            layer.spans = spans

    def take_times_of(self, workload: Workload) -> None:
        """Layers take the times of ``workload``, whose tensors are otherwise the same, from now on.

        Called between iterations.
        """
        changed = zip(self._layers(), workload.tensors, quotas(workload), strict=True)
        for layer, tensor, quota in changed:
            layer.tensor = tensor
            layer.quota = quota

    def named_tensors(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The tensors' own names and the parameters, in forward order."""
        yield from zip(self._names, self.parameters(), strict=True)

    def _layers(self) -> Iterator[PacedLayer]:
        return (layer for layer in self.children() if isinstance(layer, PacedLayer))


class PacedLayer(nn.Module):
    """The layer of the tensor at ``position``.

    ``burst`` is, in the layer that answers for a burst, the layers of the burst, itself first;
    empty in the others.
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
        """Take the layer's forward time."""
        self.pacer.begin_forward()
        parameters = (layer.values for layer in self.burst)
        result: torch.Tensor = _Paced.apply(signal, self, *parameters)  # type: ignore[no-untyped-call]
        ran = self.pacer.end()
        if torch.is_grad_enabled():
            self.record(Kind.FORWARD, ran, self.maker.iteration, 0)
        return result

    def record(self, kind: Kind, ran: tuple[int, int], iteration: int, size_bytes: int) -> None:
        """The device ran this layer in ``iteration``, which counts from 0.

        ``size_bytes``: of the gradients that it handed over.
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
    """Identity on its first input that takes a layer's time in both directions.

    The parameters are inputs only so that autograd asks for their gradients; their values are not
    read.
    """

    @staticmethod
    def forward(
        ctx: Any, signal: torch.Tensor, layer: PacedLayer, *_parameters: torch.Tensor
    ) -> torch.Tensor:
        ctx.layer = layer
        ctx.iteration = layer.maker.iteration
        make_piece = partial(layer.maker.make_piece, layer.quota.forward)
        layer.pacer.wait(layer.tensor.forward_ns, make_piece)
        return signal.clone()

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        layer: PacedLayer = ctx.layer
        layer.pacer.begin_backward()
        maker, backward_order = layer.maker, reversed(layer.burst)
        gradients = [maker.take(member.position, ctx.iteration) for member in backward_order]
        make_piece = partial(maker.make_piece, layer.quota.backward)
        layer.pacer.wait(layer.tensor.backward_ns, make_piece)
        size_bytes = sum(gradient.nbytes for gradient in gradients)
        layer.record(Kind.BACKWARD, layer.pacer.end(), ctx.iteration, size_bytes)
        return (*outputs, None, *gradients[::-1])
