"""Measures operators that memory limits, forward and backward, with PyTorch.

Each is what models in PyTorch call, which may be several kernels. A backward pass is timed as
``torch.autograd.grad`` of a forward pass that is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from byteprophet.simulate.costs.reference_operators import VOCABULARY, names
from byteprophet.simulate.costs.table import MeasuredOperator
from byteprophet.simulate.costs.taking_turns import Run, both_passes, copies, in_turn

_SHAPES = {
    "cpu": ((256, 512), (512, 512), (2048, 768)),
    "cuda": ((2048, 768), (8192, 1024), (8192, 6144)),
}
"""Tokens, and elements of each. On a GPU, an operator of a few MB does not reach the rate of a
large one. On a CPU, the memory of large ones is mapped anew for each call."""
_LOGITS = {"cpu": (), "cuda": ((8192, 50304),)}
"""More sizes of the loss: with a whole vocabulary."""
_SIDE = 8
"""Of images."""
_WIDTH = 64
"""Of a head, for rotary positions."""


def measured_operators(
    torch: Any, device: str, dtype: Any, time_ns: Callable[[Run], float]
) -> Iterator[MeasuredOperator]:
    """The time of each operator; ``time_ns`` times a call."""
    for name in names():
        for rows, columns in (*_SHAPES[device], *(_LOGITS[device] if name == "loss" else ())):
            made = Inputs(torch, device, dtype, rows, columns)
            count = copies(device, 4 * rows * columns)
            calls = [both_passes(torch, *made.of(name)) for _ in range(count)]
            for at, phase in enumerate(("forward", "backward")):
                run = in_turn([call[at] for call in calls])
                yield name, phase, rows, columns, time_ns(run)


class Inputs:
    """Makes calls of operators, and the tensors whose gradients they have."""

    def __init__(self, torch: Any, device: str, dtype: Any, rows: int, columns: int) -> None:
        self.torch = torch
        self._to: dict[str, Any] = {"device": device, "dtype": dtype}
        self.size = rows, columns
        self._draw = torch.Generator(device).manual_seed(0)

    def of(self, name: str) -> tuple[Run, list[Any]]:
        """A call, and the tensors."""
        functions = self.torch.nn.functional
        size = rows, columns = self.size
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
            wide = self._random(rows, 2 * columns)

            def gated() -> Any:
                gate, given = wide.chunk(2, -1)
                return functions.silu(gate) * given

            return gated, [wide]
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
        if name in ("batch_norm", "relu"):
            return self._images(name)
        return self._rotary()

    def _images(self, name: str) -> tuple[Run, list[Any]]:
        """Operators on images, channels last, with as many channels as there are elements."""
        functions, (rows, columns) = self.torch.nn.functional, self.size
        size = rows // _SIDE**2, columns, _SIDE, _SIDE
        given = self._random(*size).detach()
        given = given.to(memory_format=self.torch.channels_last).requires_grad_()
        if name == "relu":
            return lambda: functions.relu(given), [given]
        weight, bias = self._random(columns), self._random(columns)
        return (
            lambda: functions.batch_norm(given, None, None, weight, bias, training=True),
            [given, weight, bias],
        )

    def _rotary(self) -> tuple[Run, list[Any]]:
        """Queries and keys are turned. The fused tensor has values, too, which are not."""
        rows, columns = self.size
        heads = 2 * columns // (3 * _WIDTH)
        given = self._random(1, heads, rows, _WIDTH)
        sine, cosine = (self._random(rows, _WIDTH).detach() for _ in range(2))

        def turned() -> Any:
            left, right = given.chunk(2, -1)
            return given * cosine + self.torch.cat((-right, left), -1) * sine

        return turned, [given]

    def _random(self, *size: int) -> Any:
        return self.torch.rand(*size, generator=self._draw, **self._to).requires_grad_()

    def _whole(self, below: int) -> Any:
        """A number below ``below`` for each token."""
        return self.torch.randint(
            below, (self.size[0],), generator=self._draw, device=self._to["device"]
        )
