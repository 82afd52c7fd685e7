"""Records the order in which the forward pass needs the parameters, and makes all ranks agree.

A Gluon block asks each parameter for its array when it runs. A hybridized block asks for all arrays
of its graph in the graph's order. So the first forward pass that autograd records shows the order.
Until it is recorded, each parameter's ``data`` method is replaced by one that notes the first call.

All ranks must declare and send tensors in the same order. So rank 0's order is used. It is sent as
a sum to which the other ranks add zeros.

Threads: everything here runs in the training thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
from byteps.mxnet import ops

from byteprophet.mxnet.waiting import wait_for


class ForwardOrder:
    """Records the forward order of one trainer's parameters, by their indices in the trainer."""

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
        """Stop recording and return all indices in the order in which they were first needed.

        Parameters that were not needed come last. Their ``data`` methods are restored.
        """
        for parameter in self._parameters:
            del parameter.data
        rest = [index for index in range(len(self._parameters)) if index not in self._seen]
        return [*self._seen, *rest]


def agree(order: Sequence[int], name: str) -> list[int]:
    """Return rank 0's ``order``, which must have the same length on all ranks.

    All ranks must call this at the same time.
    """
    own = order if ops.rank() == 0 else [0] * len(order)
    message = mx.nd.array(own, dtype="int32")
    ops.byteps_declare_tensor(name)
    ops.byteps_push_pull(message, priority=0, name=name, is_average=False)
    wait_for(message.wait_to_read, "the forward order of rank 0")
    return [int(index) for index in message.asnumpy()]
