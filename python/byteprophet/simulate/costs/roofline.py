"""The time of an operator on one rank: the larger of its FLOPs and its bytes, each over a rate.

A matrix product is cut into tiles, which the multiprocessors work on in waves. The last wave and
the tiles at the edges may be partly empty, so small products take longer than their FLOPs say. Of
several tile sizes, the fastest is used.

With 8-bit inputs, products have the rate of these. Before each, its input is converted: read with
16 bits, and written twice with 8, because the backward pass needs it transposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, prod

from byteprophet.simulate.clusters.description import Gpu
from byteprophet.simulate.clusters.shapes import Shapes
from byteprophet.simulate.compile.steps import Compute, Phase
from byteprophet.simulate.costs.reference_operators import name_of
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.operation.operator import Access, Kind, Operator

_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.97), (128, 64, 0.85), (64, 64, 0.65))
"""Rows and columns of tiles, and how fast they are, relative to the largest."""
_BACKWARD_ATTENTION = 2.5
"""FLOPs of the backward kernel of fused attention over those of the forward kernel."""


class Roofline:
    """The time of operators on one GPU of a mesh."""

    def __init__(
        self,
        gpu: Gpu,
        mesh: Mesh,
        shapes: Shapes | None = None,
        *,
        operators: Mapping[tuple[str, str], float] | None = None,
        fp8: bool = False,
    ) -> None:
        """Begin with nothing worked out.

        Args:
            gpu: the GPU.
            mesh: the ranks.
            shapes: measured matrix products.
            operators: measured operators that memory limits (``Cluster.operators``).
            fp8: matrix products have 8-bit inputs.
        """
        self._gpu = gpu
        self._operators = operators or {}
        self._shapes = shapes
        self._fp8 = fp8
        self._fp8_speed = gpu.fp8_flops_per_s / gpu.flops_per_s
        self._mesh = mesh
        self._bytes_per_ns = gpu.memory_bytes_per_s * gpu.memory_efficiency / 1e9
        self._flops_per_ns = gpu.flops_per_s * gpu.matmul_efficiency / 1e9
        self._done: dict[tuple[object, ...], tuple[Operator, float]] = {}

    def time_ns(self, step: Compute) -> float:
        """The time of a step on the GPU, without waits for the host."""
        key = (id(step.operator), step.splits, step.phase)
        if key not in self._done:
            # The operator is kept, so that no other one gets its id.
            time_ns = self._time_ns(step) * self._slower(step)
            self._done[key] = (step.operator, time_ns)
        return self._done[key][1]

    def _slower(self, step: Compute) -> float:
        """How much longer an operator that memory limits was measured to take."""
        if not self._operators or step.operator.kind not in (Kind.MEMORY, Kind.LOOKUP):
            return 1.0
        phase = Phase.FORWARD if step.phase is Phase.RECOMPUTE else step.phase
        return self._operators.get((name_of(step.operator), phase.value), 1.0)

    def memory_ns(self, size_bytes: float) -> float:
        """The time of reading and writing ``size_bytes`` in all."""
        return size_bytes / self._bytes_per_ns

    def parameter_bytes(self, step: Compute) -> float:
        """The bytes of an operator's parameters on a rank."""
        return self._bytes(step, step.operator.parameters)

    def output_bytes(self, step: Compute) -> float:
        """The bytes of an operator's outputs on a rank."""
        return self._bytes(step, step.operator.outputs)

    def _time_ns(self, step: Compute) -> float:
        operator = step.operator
        if operator.kind is Kind.VIEW:
            return 0.0
        if operator.kind is Kind.MATMUL:
            return self._product_ns(step)
        read = self._bytes(step, operator.inputs)
        written = self._bytes(step, operator.outputs)
        parameters = self._bytes(step, operator.parameters)
        backward = step.phase is Phase.BACKWARD
        if operator.kind is Kind.LOOKUP:
            # Rows only; backward, the whole gradient is cleared, too.
            return self.memory_ns(2 * written + (parameters if backward else 0))
        if operator.kind is Kind.MEMORY:
            return self.memory_ns(
                self._backward_bytes(step) if backward else self._forward_bytes(step)
            )
        moved = self.memory_ns((2 if backward else 1) * (read + written + parameters))
        parts = self._mesh.parts(axis for _, axes in step.splits for axis in axes)
        flops = operator.flops / parts * (0.5 if operator.causal else 1.0)
        rate = self._gpu.flops_per_s * self._gpu.attention_efficiency / 1e9
        if operator.kind is Kind.CONVOLUTION:
            rate = self._flops_per_ns
            flops *= 2.0 if backward else 1.0
        elif backward:
            flops *= _BACKWARD_ATTENTION
        return max(moved, flops / rate)

    def _forward_bytes(self, step: Compute) -> float:
        """What the forward pass of an operator that memory limits reads and writes.

        A causal one (softmax) reads only the lower half of the scores.
        """
        operator = step.operator
        read = self._bytes(step, operator.inputs) * (0.5 if operator.causal else 1.0)
        return read + self._bytes(step, (*operator.outputs, *operator.parameters))

    def _backward_bytes(self, step: Compute) -> float:
        """What the backward pass of an operator that memory limits reads and writes.

        It reads the gradients of outputs and what was saved, and writes the gradients of inputs.
        The gradients of parameters are a second kernel, which reads the same again.
        """
        operator = step.operator
        saved = [
            one for one in (*operator.inputs, *operator.outputs) if one.tensor in operator.saved
        ]
        gradients = [one for one in operator.outputs if one.differentiable]
        read = self._bytes(step, (*saved, *gradients)) * (0.5 if operator.causal else 1.0)
        written = self._bytes(step, [one for one in operator.inputs if one.differentiable])
        if operator.parameters:
            floats = [one for one in saved if one.differentiable]
            written += self._bytes(step, (*floats, *gradients, *operator.parameters))
        return read + written

    def _product_ns(self, step: Compute) -> float:
        operator = step.operator
        splits = dict(step.splits)

        def local(dims: Iterable[str]) -> float:
            return prod(operator.size[dim] / self._mesh.parts(splits.get(dim, ())) for dim in dims)

        batch, rows, columns, inner = (local(dims) for dims in operator.product)
        rows *= operator.inputs[0].density
        right = (operator.parameters or operator.inputs[1:])[:1]
        sizes = [self._bytes(step, some) for some in (operator.inputs[:1], right, operator.outputs)]
        if self._fp8 and operator.parameters and "vocabulary" not in operator.size:
            return self._fp8_ns(step.phase, sizes, (batch, rows, columns, inner))
        moved = self.memory_ns(sum(sizes))
        if step.phase is Phase.WEIGHT:
            return max(moved, self.product_ns(batch, inner, columns, rows))
        if step.phase is not Phase.BACKWARD:
            return max(moved, self.product_ns(batch, rows, columns, inner))
        gradient = max(moved, self.product_ns(batch, rows, inner, columns))
        if operator.parameters:
            return gradient
        return gradient + max(moved, self.product_ns(batch, inner, columns, rows))

    def _fp8_ns(
        self, phase: Phase, sizes: Sequence[float], product: tuple[float, float, float, float]
    ) -> float:
        """A product with 8-bit inputs. ``sizes``: 16-bit bytes of input, parameter and output."""
        batch, rows, columns, inner = product
        given, parameter, made = sizes
        if phase is Phase.WEIGHT:  # its gradient is summed with 32 bits
            moved = self.memory_ns(given / 2 + made / 2 + 4 * parameter)
            return max(moved, self.product_ns(batch, inner, columns, rows) / self._fp8_speed)
        converted = made if phase is Phase.BACKWARD else given
        written = given if phase is Phase.BACKWARD else made
        moved = self.memory_ns(converted / 2 + parameter / 2 + written)
        tiles_ns = self.product_ns(batch, rows, columns, inner)
        if phase is Phase.BACKWARD:
            tiles_ns = self.product_ns(batch, rows, inner, columns)
        return self.memory_ns(2 * converted) + max(moved, tiles_ns / self._fp8_speed)

    def product_ns(self, batch: float, rows: float, columns: float, inner: float) -> float:
        """The time of matrix products, without reading and writing."""
        if self._gpu.multiprocessors == 1:  # one core of a CPU has no tiles
            best = 2.0 * batch * rows * columns * inner / self._flops_per_ns
            return best * self._measured(batch * rows, columns, inner)
        best = float("inf")
        for height, width, speed in _TILES:
            tiles = batch * ceil(rows / height) * ceil(columns / width)
            waves = ceil(tiles / self._gpu.multiprocessors) * self._gpu.multiprocessors
            flops = 2.0 * waves * height * width * inner
            best = min(best, flops / (self._flops_per_ns * speed))
        return best * self._measured(batch * rows, columns, inner)

    def _measured(self, rows: float, columns: float, inner: float) -> float:
        """How much longer a product was measured to take than the model says."""
        return self._shapes.ratio(rows, columns, inner) if self._shapes else 1.0

    def _bytes(self, step: Compute, accesses: Iterable[Access]) -> float:
        splits = dict(step.splits)
        total = 0.0
        for access in accesses:
            parts = prod(self._mesh.parts(splits.get(dim, ())) for dim in access.dims)
            total += step.operator.elements(access) * access.element_bytes / parts
        return total
