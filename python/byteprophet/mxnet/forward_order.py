"""Records the order in which the forward pass needs the parameters, and makes all ranks agree.

A Gluon block asks each parameter for its array when it runs. A hybridized block asks for all arrays
of its graph in the graph's order. So the first forward pass that autograd records shows the order.
``Parameter.data`` tells all recorders. The class has it, not each parameter: a copy of a parameter
would go on to return the original's array, and several trainers may have the same parameter.

All ranks must declare and send tensors in the same order. So rank 0's order is used. It is sent as
a sum to which the other ranks add zeros.

Threads: everything here runs in the training thread.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
from byteps.mxnet import ops

from byteprophet.mxnet.sums import summed


class ForwardOrder:
    """Records the forward order of one trainer's parameters, by their indices in the trainer."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._parameters = parameters  # keeps them alive, so that their ids stay theirs
        self._indices = {id(parameter): index for index, parameter in enumerate(parameters)}
        self._seen: dict[int, None] = {}
        _listen()
        _recorders.add(self)

    def note(self, parameter: Any) -> None:
        """Note that the forward pass needs ``parameter``."""
        index = self._indices.get(id(parameter))
        if index is not None:
            self._seen.setdefault(index)

    def take(self) -> list[int]:
        """Stop recording and return all indices in the order in which they were first needed.

        Parameters that were not needed come last.
        """
        _recorders.discard(self)
        rest = [index for index in range(len(self._parameters)) if index not in self._seen]
        return [*self._seen, *rest]


_recorders: weakref.WeakSet[ForwardOrder] = weakref.WeakSet()


@functools.cache
def _listen() -> None:
    """Have ``Parameter.data`` tell all recorders. This takes effect once per process."""
    mx.gluon.Parameter.data = _telling(mx.gluon.Parameter.data)


def _telling(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def data(parameter: Any, ctx: Any = None) -> Any:
        array = plain(parameter, ctx)
        if _recorders and mx.autograd.is_recording():
            for recorder in _recorders:
                recorder.note(parameter)
        return array

    return data


def agree(order: Sequence[int], name: str) -> list[int]:
    """Return rank 0's ``order``, which must have the same length on all ranks.

    All ranks must call this at the same time. ``name`` is that of the trainer.
    """
    own = order if ops.rank() == 0 else [0] * len(order)
    return summed(own, f"Order.{name}", "the forward order of rank 0")
