"""Operators that are called alike run once."""

from __future__ import annotations

from typing import Any

import torch

from byteprophet.simulate.models.traced_runs import Runs

_RELU: Any = torch.ops.aten.relu.default
_ADD: Any = torch.ops.aten.add.Tensor


class _Counting:
    """An operator that counts its runs."""

    def __init__(self, operator: Any) -> None:
        self._operator, self._schema, self.runs = operator, operator._schema, 0
        self.__name__ = operator._opname

    def __call__(self, *given: Any) -> Any:
        self.runs += 1
        return self._operator(*given)


def test_operators_that_are_called_alike_run_once() -> None:
    graph: Any = torch.fx.Graph()

    def given(*shape: int) -> Any:
        node = graph.placeholder("given")
        node.meta["val"] = torch.empty(*shape, device="meta")
        return node

    one, other, wide = given(4, 6), given(4, 6), given(4, 8)
    relu, add = _Counting(_RELU), _Counting(_ADD)
    runs = Runs()

    def of(operator: _Counting, *inputs: Any, learns: bool = True) -> Any:
        node = graph.create_node("call_function", operator, inputs)
        return runs.of(node, [inputs[0].name] if learns else [], [])

    first = of(relu, one)
    assert of(relu, other) is first
    assert relu.runs == 1
    assert first.saved_outputs == [0]
    # Other shapes, other gradients and other places of the same tensor are other calls.
    of(relu, wide)
    assert of(relu, one, learns=False).saved_outputs == []
    assert relu.runs == 3
    of(add, one, other)
    of(add, one, one)
    of(add, other, one)
    assert add.runs == 2
