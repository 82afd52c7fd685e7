"""``DistributedOptimizer`` for MXNet's ``Module`` and scripts that call an optimizer themselves.

There, a parameter's index is its place in the symbol's list of arguments. This is the order of the
forward pass, so BytePS' priorities are right, but for their first: priorities of 0 have no place in
the order, and ours begin with -1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from byteps.mxnet import DistributedOptimizer as BytePSOptimizer
from byteps.mxnet import ops

from byteprophet import _plugin
from byteprophet.mxnet.iterations import Iterations
from byteprophet.mxnet.one_by_one import singly
from byteprophet.mxnet.sparse_gradients import refusal
from byteprophet.session import process as observing

_numbers = itertools.count(1)


class DistributedOptimizer(BytePSOptimizer):  # type: ignore[misc]
    """BytePS' optimizer, which here also counts iterations and updates parameters one by one."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        self._iterations = Iterations()
        self._number = next(_numbers)
        self._version = 0
        self._sent: set[Any] = set()  # in this iteration
        self._named: set[str] = set()  # the tensors whose names records and plans know

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average ``grad`` over all ranks and update ``weight``. Arguments may also be lists."""
        self._send(index, grad)
        _each(self._optimizer.update, index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Like ``update``, with a master copy in ``state`` for half precision."""
        self._send(index, grad)
        _each(self._optimizer.update_multi_precision, index, weight, grad, state)

    def _send(self, index: Any, grad: Any) -> None:
        several = isinstance(index, list | tuple)
        for number, gradient in zip(index, grad, strict=True) if several else [(index, grad)]:
            if number in self._sent or not self._sent:
                self._sent.clear()
                self._version = self._iterations.next_version()
            self._sent.add(number)
            if gradient.stype != "default":
                raise refusal(f"parameter {number}")
            # Another optimizer's parameters have the same numbers.
            name = f"gradient_{number}" + (f"#{self._number}" if self._number > 1 else "")
            self._declare(name)
            ops.byteps_push_pull(
                gradient, version=self._version, priority=-1 - number, name=name, is_average=True
            )

    def _declare(self, name: str) -> None:
        """Declare a tensor. Its first declaration also tells records and plans its name."""
        ops.byteps_declare_tensor(name)
        plugin = _plugin.load("mxnet")
        if plugin is not None and name not in self._named:
            self._named.add(name)
            observing.declared(plugin, [name])


def _each(update: Callable[..., None], index: Any, *values: Any) -> None:
    if not isinstance(index, list | tuple):
        update(index, *values)
        return
    for each in singly(index, *values):
        update(*each)
