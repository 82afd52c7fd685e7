"""Measures operators that memory limits, forward and backward, with PyTorch.

Each is what models in PyTorch call, which may be several kernels. A backward pass is timed as
``torch.autograd.grad`` of a forward pass that is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from byteprophet.simulate.costs.reference_operators import VOCABULARY, names
from byteprophet.simulate.costs.table import MeasuredOperator

_SHAPES = {"cpu": (2048, 768), "cuda": (8192, 6144)}
"""Tokens, and elements of each."""
_WIDTH = 64
"""Of a head, for rotary positions."""

Run = Callable[[], Any]


def measured_operators(
    torch: Any, device: str, dtype: Any, time_ns: Callable[[Run], float]
) -> Iterator[MeasuredOperator]:
    """The time of each operator; ``time_ns`` times a call."""
    rows, columns = _SHAPES[device]
    for name in names():
        made = Inputs(torch, device, dtype, rows, columns)
        with torch.enable_grad():
            forward, inputs = made.of(name)
            out = forward()
            gradient = torch.ones_like(out)
        yield name, "forward", rows, columns, time_ns(forward)

        def backward(out: Any = out, inputs: Any = inputs, gradient: Any = gradient) -> None:
            torch.autograd.grad(out, inputs, gradient, retain_graph=True)

        yield name, "backward", rows, columns, time_ns(backward)


class Inputs:
    """Makes calls of operators, and the tensors whose gradients they have."""

    def __init__(self, torch: Any, device: str, dtype: Any, rows: int, columns: int) -> None:
        self._torch = torch
        self._to: dict[str, Any] = {"device": device, "dtype": dtype}
        self._rows, self._columns = rows, columns
        self._draw = torch.Generator(device).manual_seed(0)

    def of(self, name: str) -> tuple[Run, list[Any]]:
        """A call, and the tensors."""
        functions = self._torch.nn.functional
        rows, columns = self._rows, self._columns
        size = rows, columns
        if name == "layer norm":
            given, weight, bias = self._random(*size), self._random(columns), self._random(columns)
            return (
                lambda: functions.layer_norm(given, (columns,), weight, bias),
                [given, weight, bias],
            )
        if name == "rms norm":
            given, weight = self._random(*size), self._random(columns)
            return lambda: functions.rms_norm(given, (columns,), weight), [given, weight]
        if name == "activation":
            given = self._random(*size)
            return lambda: functions.gelu(given), [given]
        if name == "gated activation":
            given = self._random(rows, columns, 2)
            return lambda: functions.silu(given[..., 0]) * given[..., 1], [given]
        if name == "add":
            given, stem = self._random(*size), self._random(*size)
            return lambda: stem + given, [stem, given]
        if name == "biased add":
            given, stem, bias = self._random(*size), self._random(*size), self._random(columns)
            return lambda: stem + (given + bias), [stem, given, bias]
        if name == "loss":
            given, wanted = self._random(*size), self._whole(columns)
            return lambda: functions.cross_entropy(given, wanted), [given]
        if name == "tokens":
            table, wanted = self._random(VOCABULARY, columns), self._whole(VOCABULARY)
            return lambda: functions.embedding(wanted, table), [table]
        return self._rotary()

    def _rotary(self) -> tuple[Run, list[Any]]:
        """Queries and keys are turned. The fused tensor has values, too, which are not."""
        heads = 2 * self._columns // (3 * _WIDTH)
        given = self._random(1, heads, self._rows, _WIDTH)
        sine, cosine = (self._random(self._rows, _WIDTH).detach() for _ in range(2))

        def turned() -> Any:
            left, right = given.chunk(2, -1)
            return given * cosine + self._torch.cat((-right, left), -1) * sine

        return turned, [given]

    def _random(self, *size: int) -> Any:
        return self._torch.rand(*size, generator=self._draw, **self._to).requires_grad_()

    def _whole(self, below: int) -> Any:
        """A number below ``below`` for each token."""
        return self._torch.randint(
            below, (self._rows,), generator=self._draw, device=self._to["device"]
        )
