"""The time of an operator on one rank: the larger of its FLOPs and its bytes, each over a rate.

A matrix product is cut into tiles, which the multiprocessors work on in waves. The last wave and
the tiles at the edges may be partly empty, so small products take longer than their FLOPs say. Of
several tile sizes, the fastest is used.

Rows of a matrix that do not begin at multiples of 16 bytes cannot be copied asynchronously.
Products with such matrices are many times slower: those with a vocabulary of 50,257, for example.

With 8-bit inputs, products have the rate of these. Before each, its input is converted: read with
16 bits, and written twice with 8, because the backward pass needs it transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil, gcd, log2, prod

from byteprophet.simulate.clusters.description import Gpu
from byteprophet.simulate.clusters.kernels import Curve, Kernels
from byteprophet.simulate.clusters.shapes import Shapes
from byteprophet.simulate.compile.steps import Compute, Phase
from byteprophet.simulate.costs.reference_operators import name_of
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.operation.operator import WEIGHTED, Access, Kind, Operator

_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.97), (128, 64, 0.85), (64, 64, 0.65))
"""Rows and columns of tiles, and how fast they are, relative to the largest."""
_BACKWARD_ATTENTION = 2.5
"""FLOPs of the backward kernel of fused attention over those of the forward kernel."""
_ALIGNED_BYTES = 16
_FASTER_BY_ALIGNMENT = 1.5
"""Of products whose rows begin at multiples of twice as many bytes. An estimate: bert-large, whose
vocabulary has 30,522 rows, takes as long on an H100 as if this were so."""
_ELEMENT_BYTES = 2
_HEADS = ("batch", "heads", "queries")
"""Dimensions of fused attention that multiply the number of heads."""


class Roofline:
    """The time of operators on one GPU of a mesh."""

    def __init__(
        self,
        gpu: Gpu,
        mesh: Mesh,
        shapes: Shapes | None = None,
        *,
        operators: Mapping[tuple[str, str], float | Curve] | None = None,
        kernels: Kernels | None = None,
        fp8: bool = False,
        eager: bool = False,
    ) -> None:
        """Begin with nothing worked out.

        Args:
            gpu: the GPU.
            mesh: the ranks.
            shapes: measured matrix products.
            operators: measured operators that memory limits (``Cluster.operators``).
            kernels: other measured kernels.
            fp8: matrix products have 8-bit inputs.
            eager: operators of PyTorch without compilation count (``Strategy``): for biases, and
                copies of the gradients of queries, keys and values into one tensor.
        """
        self._gpu = gpu
        self._operators = operators or {}
        self._kernels = kernels or Kernels()
        self._eager = eager
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
            self._done[key] = (step.operator, self._operator_ns(step))
        return self._done[key][1]

    def _operator_ns(self, step: Compute) -> float:
        if self._eager and step.phase is Phase.BACKWARD and _is_sum(step.operator):
            return self._added_ns(step)
        time_ns = self._time_ns(step)
        return time_ns * self._slower(step, time_ns)

    def _slower(self, step: Compute, modelled_ns: float) -> float:
        """How much longer an operator that memory limits was measured to take."""
        if not self._operators or step.operator.kind not in (Kind.MEMORY, Kind.LOOKUP):
            return 1.0
        phase = Phase.FORWARD if step.phase is Phase.RECOMPUTE else step.phase
        found = self._operators.get((name_of(step.operator), phase.value), 1.0)
        return found.at(modelled_ns) if isinstance(found, Curve) else found

    def memory_ns(self, size_bytes: float) -> float:
        """The time of reading and writing ``size_bytes`` in all."""
        return size_bytes / self._bytes_per_ns

    def parameter_bytes(self, step: Compute) -> float:
        """The bytes on a rank of an operator's parameters that are trained."""
        return self._bytes(step, step.operator.trained)

    def output_bytes(self, step: Compute) -> float:
        """The bytes of an operator's outputs on a rank."""
        return self._bytes(step, step.operator.outputs)

    def _time_ns(self, step: Compute) -> float:
        operator = step.operator
        if operator.kind is Kind.VIEW:
            return self._view_ns(step)
        if operator.kind is Kind.MATMUL:
            return self._product_ns(step) + self._bias_ns(step)
        if operator.kind is Kind.CONVOLUTION:
            return self._convolution_ns(step) + self._bias_ns(step)
        if operator.kind is Kind.ATTENTION:
            return self._attention_ns(step)
        backward = step.phase is Phase.BACKWARD
        if operator.kind in (Kind.LOOKUP, Kind.BAG):
            # Rows only; backward, the whole gradient is cleared, too.
            cleared = self.parameter_bytes(step) if backward else 0
            return self.memory_ns(self._row_bytes(step) + self.output_bytes(step) + cleared)
        moved = self._backward_bytes(step) if backward else self._forward_bytes(step)
        return self.memory_ns(moved)

    def _row_bytes(self, step: Compute) -> float:
        """The bytes of the rows that a lookup reads, or of their gradients."""
        operator = step.operator
        if operator.kind is Kind.LOOKUP:
            return self.output_bytes(step)
        made = operator.outputs[0]
        row_bytes = self._local(step)(made.dims[-1]) * made.element_bytes
        return row_bytes * self._bytes(step, [replace(operator.inputs[0], element_bytes=1)])

    def _view_ns(self, step: Compute) -> float:
        """What autograd copies: gradients of the parts of a tensor into one of the whole."""
        operator = step.operator
        if not self._eager or step.phase is not Phase.BACKWARD or len(operator.outputs) < 2:
            return 0.0
        return self.memory_ns(2 * self.output_bytes(step))

    def _bias_ns(self, step: Compute) -> float:
        """What operators of their own do for a bias: add it to a convolution, and its gradient."""
        if not self._eager or not has_bias(step.operator):
            return 0.0
        if step.phase is Phase.WEIGHT:
            trains = step.operator.parameters[1].differentiable
            return self._sum_ns(self.output_bytes(step)) if trains else 0.0
        forward = step.phase is not Phase.BACKWARD
        is_added = forward and step.operator.kind is Kind.CONVOLUTION
        return self.memory_ns(2 * self.output_bytes(step)) if is_added else 0.0

    def _sum_ns(self, size_bytes: float) -> float:
        """The sum over all tokens that is the gradient of a bias.

        It is what is measured of the backward pass of a sum with a bias. There, the model counts
        four times as many bytes, because gradients of the stream are added up, too.
        """
        modelled_ns = self.memory_ns(4 * size_bytes)
        found = self._operators.get(("biased add", Phase.BACKWARD.value), 0.25)
        return modelled_ns * (found.at(modelled_ns) if isinstance(found, Curve) else found)

    def _added_ns(self, step: Compute) -> float:
        """The backward pass of a sum: the stream has two gradients, which are added up."""
        made = self.output_bytes(step)
        added_ns = self.memory_ns(3 * made)
        return added_ns + (self._sum_ns(made) if step.operator.trained else 0.0)

    def _attention_ns(self, step: Compute) -> float:
        operator, backward = step.operator, step.phase is Phase.BACKWARD
        every = (*operator.inputs, *operator.outputs, *operator.parameters)
        moved = self.memory_ns((2 if backward else 1) * self._bytes(step, every))
        flops = self._flops(step) * (0.5 if operator.causal else 1.0)
        rate = self._gpu.flops_per_s * self._gpu.attention_efficiency / 1e9
        modelled = max(moved, flops * (_BACKWARD_ATTENTION if backward else 1.0) / rate)
        phase = Phase.BACKWARD if backward else Phase.FORWARD
        shapes = self._kernels.attention.get((phase.value, "causal" if operator.causal else "full"))
        if shapes is None or not {"sequence", "width", *_HEADS} <= operator.size.keys():
            return modelled
        local = self._local(step)
        heads = prod(map(local, _HEADS))
        return modelled * shapes.ratio(heads, local("sequence"), local("width"))

    def _convolution_ns(self, step: Compute) -> float:
        """A convolution, or a matrix product of two activations of a traced model."""
        operator = step.operator
        moved = self.memory_ns(
            self._bytes(step, (*operator.inputs, *operator.outputs, *operator.parameters))
        )
        flops = self._flops(step)
        modelled = max(moved, flops / self._flops_per_ns) * _products(step)
        phase = Phase.FORWARD if step.phase is Phase.RECOMPUTE else step.phase
        shapes = self._kernels.convolutions.get(phase.value)
        if shapes is None or not operator.parameters:
            return modelled
        local = self._local(step)
        made = prod(map(local, operator.outputs[0].dims))
        read = prod(map(local, operator.inputs[0].dims))
        inner = flops / (2 * made)
        columns = operator.elements(operator.parameters[0]) / inner
        rows = made / columns
        return modelled * shapes.ratio(rows, columns, inner, read / rows)

    def _flops(self, step: Compute) -> float:
        """FLOPs of the forward pass on this rank."""
        axes = (axis for _, its in step.splits for axis in its)
        return step.operator.flops / self._mesh.parts(axes)

    def _local(self, step: Compute) -> Callable[[str], float]:
        """The size of a dimension on this rank."""
        splits = dict(step.splits)
        return lambda dim: step.operator.size[dim] / self._mesh.parts(splits.get(dim, ()))

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
        if operator.trained:
            floats = [one for one in saved if one.differentiable]
            written += self._bytes(step, (*floats, *gradients, *operator.trained))
        return read + written

    def _product_ns(self, step: Compute) -> float:
        operator, local = step.operator, self._local(step)
        if step.phase is Phase.WEIGHT and not operator.parameters[0].differentiable:
            return 0.0  # only its bias is trained
        batch, rows, columns, inner = (prod(map(local, dims)) for dims in operator.product)
        rows *= operator.inputs[0].density
        right = (operator.parameters or operator.inputs[1:])[:1]
        sizes = [self._bytes(step, some) for some in (operator.inputs[:1], right, operator.outputs)]
        if self._fp8 and operator.allows_8_bits:
            return self._fp8_ns(step.phase, sizes, (batch, rows, columns, inner))
        moved = self.memory_ns(sum(sizes))
        moved = max(moved, self._unaligned_ns(step.phase, (batch, rows, columns, inner)))
        laid_out = self._laid_out(step, batch * rows, columns, inner)
        if step.phase is Phase.WEIGHT:
            return max(moved, self.product_ns(batch, inner, columns, rows) * laid_out)
        if step.phase is not Phase.BACKWARD:
            return max(moved, self.product_ns(batch, rows, columns, inner) * laid_out)
        gradient = max(moved, self.product_ns(batch, rows, inner, columns))
        if operator.parameters:
            return gradient
        return gradient + max(moved, self.product_ns(batch, inner, columns, rows))

    def _laid_out(self, step: Compute, *sizes: float) -> float:
        """How much longer a product of a linear layer takes, because a matrix is transposed."""
        phase = Phase.FORWARD if step.phase is Phase.RECOMPUTE else step.phase
        shapes = self._kernels.transposed.get(phase.value)
        return shapes.ratio(*sizes) if shapes and step.operator.parameters else 1.0

    def _unaligned_ns(self, phase: Phase, product: tuple[float, float, float, float]) -> float:
        """The time of a product whose rows begin at no multiples of 16 bytes; 0 if they do.

        All three products of a layer have a matrix with rows of ``columns`` or ``inner`` elements.
        """
        _, _, columns, inner = product
        aligned = gcd(_ALIGNED_BYTES, *(_ELEMENT_BYTES * round(size) for size in (columns, inner)))
        if aligned == _ALIGNED_BYTES or self._gpu.multiprocessors == 1:
            return 0.0
        known = Phase.FORWARD if phase is Phase.RECOMPUTE else phase
        efficiency = self._kernels.unaligned.get((aligned, known.value), 0.0)
        if not efficiency:
            doubled = log2(aligned / _ELEMENT_BYTES)
            efficiency = self._gpu.unaligned_efficiency * _FASTER_BY_ALIGNMENT**doubled
        if not efficiency:
            return 0.0
        return 2e9 * prod(product) / (self._gpu.flops_per_s * efficiency)

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


def has_bias(operator: Operator) -> bool:
    """Whether an operator is a linear layer or a convolution with a bias."""
    return operator.kind in WEIGHTED and len(operator.parameters) > 1


def _products(step: Compute) -> float:
    """How many times the FLOPs of the forward pass a step has."""
    operator = step.operator
    weights = operator.flops if operator.weight_flops is None else operator.weight_flops
    if step.phase is Phase.BACKWARD:
        return (operator.backward_flops - weights) / operator.flops
    return weights / operator.flops if step.phase is Phase.WEIGHT else 1.0


def _is_sum(operator: Operator) -> bool:
    """Whether an operator adds a branch to a stream of activations."""
    return operator.kind is Kind.MEMORY and name_of(operator) in ("add", "biased add")
