"""The order in which the forward pass needs the parameters: recorded, and the same on all ranks.

A Gluon block asks each parameter for its array when it runs, a hybridized one asks for all of its
graph's in the order of the graph. So the first forward pass that autograd records tells the order:
until it is taken, each parameter's own ``data`` is one that remembers the first call.

Every rank declares and sends tensors in the same order, so rank 0's holds for all: it is broadcast
as a sum to which the others add zeros.

Threads: everything here runs in the thread that trains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
from byteps.mxnet import ops

from byteprophet.mxnet.waiting import wait_for


class ForwardOrder:
    """Of the parameters of one trainer, by their indices there."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._parameters = parameters
        self._seen: dict[int, None] = {}
        for index, parameter in enumerate(parameters):
            parameter.data = self._remembering(index, parameter.data)

    def _remembering(self, index: int, data: Callable[..., Any]) -> Callable[..., Any]:
        def remembering(ctx: Any = None) -> Any:
            array = data(ctx)
            if mx.autograd.is_recording():
                self._seen.setdefault(index)
            return array

        return remembering

    def take(self) -> list[int]:
        """All indices in the order of first need, those that were not needed last; ends recording.

        The parameters are then as they were.
        """
        for parameter in self._parameters:
            del parameter.data
        rest = [index for index in range(len(self._parameters)) if index not in self._seen]
        return [*self._seen, *rest]


def agree(order: Sequence[int], name: str) -> list[int]:
    """Rank 0's ``order``, of the same length on all ranks, which all call this at the same time."""
    own = order if ops.rank() == 0 else [0] * len(order)
    message = mx.nd.array(own, dtype="int32")
    ops.byteps_declare_tensor(name)
    ops.byteps_push_pull(message, priority=0, name=name, is_average=False)
    wait_for(message.wait_to_read, "the forward order of rank 0")
    return [int(index) for index in message.asnumpy()]
