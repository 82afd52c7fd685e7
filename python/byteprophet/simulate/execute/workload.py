"""A simulated data-parallel job as a workload: its parameters, with their times.

Whatever plans, searches, or runs workloads can then do so with a job that only the simulator knows.

A parameter's forward time lasts until the next operator with parameters begins, and its backward
time begins when the gradient before it is ready. The parameters of one operator are a burst. A
workload's gradients become ready in the reverse order of the forward pass. A gradient that is ready
before one that the forward pass needs later counts as ready with that one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from byteprophet.errors import UserError
from byteprophet.simulate.compile.program import Block, Program
from byteprophet.simulate.compile.steps import Compute, Step
from byteprophet.simulate.costs.blocks import BlockCosts, Pass, PassTime, makes_gradients
from byteprophet.simulate.tree.strategy import PRECISIONS
from byteprophet.workload import Tensor, Workload
from byteprophet.workload.model import FLOAT32_BYTES


@dataclass
class _Layer:
    """An operator with parameters.

    Attributes:
        names: of those that no earlier operator has.
        elements: theirs.
        begins_ns: when the forward pass needs them.
        ready_ns: when their gradients are ready, from the begin of the backward pass.
    """

    names: list[str] = field(default_factory=list)
    elements: list[int] = field(default_factory=list)
    begins_ns: float = 0.0
    ready_ns: float = 0.0


def workload_of(program: Program, costs: BlockCosts) -> Workload:
    """The workload of a program whose ranks are all data-parallel.

    Raises:
        UserError: they are not, or an iteration has more than one pass.
    """
    strategy, mesh = program.strategy, program.strategy.mesh
    if mesh.ranks != mesh.dp or strategy.zero or strategy.micro_batches > 1:
        raise UserError(
            "strategy: only a data-parallel job is a workload: one without tp, pp, cp, ep, zero, "
            "and micro_batches"
        )
    blocks = [block for stage in program.stages for block in stage.blocks]
    layers, forward_ns = _forward(blocks, costs)
    backward_ns = _backward(blocks, layers, costs)
    every = [layer for own in layers for layer in own if layer.names]
    if not every:
        raise UserError(f"model {program.model.name} has no parameters that are trained")
    every[0].begins_ns, every[0].ready_ns = 0.0, backward_ns
    for layer, later in zip(every[-2::-1], every[:0:-1], strict=True):
        layer.ready_ns = max(layer.ready_ns, later.ready_ns)
    ends_ns = [*(layer.begins_ns for layer in every[1:]), forward_ns]
    earlier_ns = [*(layer.ready_ns for layer in every[1:]), 0.0]
    element_bytes = PRECISIONS[strategy.precision].sent_gradient_bytes
    tensors = [
        tensor
        for burst, times in enumerate(zip(every, ends_ns, earlier_ns, strict=True))
        for tensor in _tensors(*times, burst, element_bytes)
    ]
    return Workload(program.model.name, strategy.micro_batch, tuple(tensors))


def _forward(blocks: Sequence[Block], costs: BlockCosts) -> tuple[list[list[_Layer]], float]:
    """The layers of each block, and the time of the forward pass."""
    found: list[list[_Layer]] = []
    now_ns = 0.0
    for block in blocks:
        compiled = block.compiled
        parameters = iter(compiled.parameters)
        layers: list[_Layer] = []
        for step, time_ns in _timed(compiled.forward, [costs.time(compiled).forward], costs):
            if isinstance(step, Compute):
                layer = _Layer(begins_ns=now_ns)
                for access in step.operator.parameters:
                    one = next(parameters, None)
                    if one is None:
                        raise _several_passes(block)
                    if one.trained and not one.repeated:
                        layer.names.append(f"{block.path}.{one.path}.{access.tensor}")
                        layer.elements.append(one.elements)
                layers += [layer] if step.operator.trained else []
            now_ns += time_ns
        found.append(layers)
    return found, now_ns


def _backward(
    blocks: Sequence[Block], layers: Sequence[Sequence[_Layer]], costs: BlockCosts
) -> float:
    """Note when the gradients of layers are ready. Returns the time of the backward pass."""
    now_ns = 0.0
    for block, own in zip(reversed(blocks), reversed(layers), strict=True):
        compiled = block.compiled
        times = costs.time(compiled)
        waiting: dict[int, list[_Layer]] = defaultdict(list)
        here = iter(own)
        for step in compiled.forward:
            if _trains(step):
                waiting[id(step.operator)].append(next(here))
        for step, time_ns in _timed(compiled.backward, [times.backward, times.weight], costs):
            now_ns += time_ns
            if _trains(step) and makes_gradients(step):
                if not waiting[id(step.operator)]:
                    raise _several_passes(block)
                waiting[id(step.operator)].pop().ready_ns = now_ns
    return now_ns


def _timed(
    steps: Sequence[Step], passes: Sequence[Pass], costs: BlockCosts
) -> Iterator[tuple[Step, float]]:
    """Steps with their times, which add up to those of ``passes``."""
    alone = [_pass_ns(costs.steps([step])) for step in steps]
    scale = sum(map(_pass_ns, passes)) / (sum(alone) or 1)
    return ((step, time_ns * scale) for step, time_ns in zip(steps, alone, strict=True))


def _pass_ns(passed: Pass) -> int:
    return sum(part.time_ns for part in passed if isinstance(part, PassTime))


def _trains(step: Step) -> TypeGuard[Compute]:
    return isinstance(step, Compute) and bool(step.operator.trained)


def _several_passes(block: Block) -> UserError:
    return UserError(
        f"strategy: {block.path}: runs in micro-batches of its own, so it is no workload"
    )


def _tensors(
    layer: _Layer, end_ns: float, earlier_ns: float, burst: int, element_bytes: int
) -> Iterator[Tensor]:
    """The parameters of a layer. The first has the layer's times."""
    forward_ns = round(end_ns) - round(layer.begins_ns)
    backward_ns = round(layer.ready_ns) - round(earlier_ns)
    for name, elements in zip(layer.names, layer.elements, strict=True):
        size_bytes = -(-elements * element_bytes // FLOAT32_BYTES) * FLOAT32_BYTES
        yield Tensor(name, size_bytes, forward_ns, backward_ns, burst)
        forward_ns = backward_ns = 0
