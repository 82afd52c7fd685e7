"""The program of a job: blocks on stages, stages on pipeline ranks, and their actions in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from byteprophet.errors import UserError
from byteprophet.simulate.compile.compiled import Compiled
from byteprophet.simulate.compile.effects import check_effects
from byteprophet.simulate.compile.module import Compiler
from byteprophet.simulate.compile.schedules import Action, actions_of
from byteprophet.simulate.compile.shared import shared_once
from byteprophet.simulate.compile.steps import Phase, Step
from byteprophet.simulate.compile.transform import transform
from byteprophet.simulate.models.module import Call, Model, Module
from byteprophet.simulate.operation.layout import Layout
from byteprophet.simulate.operation.operator import Operator
from byteprophet.simulate.tree.scope import Scope
from byteprophet.simulate.tree.strategy import Strategy

_SEQUENCE = "sequence"


@dataclass(frozen=True)
class Block:
    """A child of the model's root on one rank."""

    path: str
    compiled: Compiled


@dataclass(frozen=True)
class Stage:
    """Consecutive blocks.

    Attributes:
        blocks: the blocks.
        received_bytes: what each rank receives from the previous stage per micro-batch.
        returned_bytes: the gradients of these that it sends back.
        saved_bytes: activations of a micro-batch that are kept for the backward pass.
        transient_bytes: the most bytes in use during its backward pass, less those.
        recomputed_bytes: what its backward pass recomputes, and keeps for delayed gradients.
        gathered_bytes: what tensor-parallel ranks then make of their parts; 0: they have all of it.
        last: collectives after the last block, which complete the model's outputs.
    """

    blocks: tuple[Block, ...]
    received_bytes: int
    returned_bytes: int
    saved_bytes: int
    transient_bytes: int
    recomputed_bytes: int
    gathered_bytes: int = 0
    last: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Program:
    """What a job does in one iteration.

    Attributes:
        model: the model, with the samples of one micro-batch.
        strategy: the strategy.
        stages: the stages; stage ``s`` runs on pipeline rank ``s % pp``.
        actions: the actions of each pipeline rank, in order.
        tied_elements: of the parameters that the first and the last pipeline rank both train.
    """

    model: Model
    strategy: Strategy
    stages: tuple[Stage, ...]
    actions: tuple[tuple[Action, ...], ...]
    tied_elements: int = 0


def compile_program(model: Model, strategy: Strategy) -> Program:
    """Compile a model under a strategy.

    Raises:
        UserError: the strategy does not fit the model; the text names the node's path.
    """
    mesh = strategy.mesh
    compiler = Compiler(strategy)
    root = Scope.root(strategy)
    compiler.matched |= root.matched
    layouts = {name: _input_layout(root, model.root, name) for name in model.root.inputs}
    local_bytes = dict.fromkeys(model.root.inputs, 0)
    learned: set[str] = set()
    blocks: list[Block] = []
    asked: list[int | None] = []
    last: tuple[Step, ...] = ()
    for call in model.blocks:
        scope = compiler.scope(root, call.name)
        inputs = [layouts[name] for name in call.inputs]
        if scope.limits_ongoing and call is not model.blocks[-1]:
            raise UserError(
                f"strategy: {scope.path}: max_ongoing: only the last block, "
                f"{model.blocks[-1].name}, has its backward pass before the forward pass of all "
                "others has ended"
            )
        compiled = compiler.compile(call.module, scope, inputs)
        blocks.append(Block(call.name, compiled))
        asked.append(scope.stage)
        for name, value in zip(call.outputs, compiled.outputs, strict=True):
            layouts[name], local_bytes[name] = value.layout, value.local_bytes
            learned |= {name} if value.differentiable else set()
            if name in model.root.outputs:
                whole = Layout(value.layout.split)
                last += transform(value.layout, whole, value.whole_bytes, mesh, Phase.FORWARD)
    check_effects(model, strategy, compiler)
    of_block = _stages_of(model, strategy.stages, asked)
    of_rank = [(stage % mesh.pp, block.path) for stage, block in zip(of_block, blocks, strict=True)]
    once, tied_elements = shared_once([block.compiled for block in blocks], of_rank, mesh.pp)
    blocks = [replace(block, compiled=one) for block, one in zip(blocks, once, strict=True)]
    stages = []
    for stage in range(strategy.stages):
        here = [at for at, its in enumerate(of_block) if its == stage]
        ends = last if stage == strategy.stages - 1 else ()
        crossing = _crossing(model.blocks, here[0])
        size = sum(local_bytes[name] for name in crossing)
        back = sum(local_bytes[name] for name in crossing if name in learned)
        alike = all(layouts[name].where("tp") is None for name in crossing)
        parts = mesh.tp if strategy.scatter_gather and alike else 1
        gathered = size if parts > 1 else 0
        saved: dict[tuple[str, Layout], int] = {}
        peak = 0
        for at in here:
            saved |= saved_by(model.blocks[at], blocks[at].compiled)
            peak = max(peak, sum(saved.values()) + blocks[at].compiled.transient_bytes)
        kept = sum(saved.values())
        own = tuple(blocks[at] for at in here)
        again = sum(block.compiled.recomputed_bytes for block in own)
        stages.append(
            Stage(own, size // parts, back // parts, kept, peak - kept, again, gathered, ends)
        )
    if strategy.scatter_gather and not any(stage.gathered_bytes for stage in stages):
        raise UserError(
            "strategy: scatter_gather=1 has no effect: stages pass on activations that are already "
            "split over tp"
        )
    actions = tuple(tuple(actions_of(strategy, rank)) for rank in range(mesh.pp))
    return Program(model, strategy, tuple(stages), actions, tied_elements)


def _crossing(blocks: Sequence[Call], first: int) -> list[str]:
    """The tensors that blocks before ``first`` make, and that it or later ones read."""
    made = {name for call in blocks[:first] for name in call.outputs}
    read = dict.fromkeys(name for call in blocks[first:] for name in call.inputs)
    return [name for name in read if name in made]


def saved_by(call: Call, compiled: Compiled) -> dict[tuple[str, Layout], int]:
    """What a block keeps, by names that are unique in the model."""
    names = dict(zip(call.module.inputs, call.inputs, strict=True))
    names |= dict(zip(call.module.outputs, call.outputs, strict=True))
    return {
        (names.get(tensor, f"{call.name}.{tensor}"), layout): size
        for (tensor, layout), size in compiled.saved.items()
    }


def _input_layout(root: Scope, module: Module, name: str) -> Layout:
    """The layout of an input of the model: every rank reads the part that it needs."""
    split: dict[str, tuple[str, ...]] = {}
    for axis, wanted in root.splits:
        for dim in ("batch", _SEQUENCE):
            if dim in wanted and axis != "tp":
                split[dim] = (*split.get(dim, ()), axis)
                break
    return Layout(tuple(split.get(dim, ()) for dim in _dims_of(module, name)))


def _dims_of(module: Module, name: str) -> tuple[str, ...]:
    """The dimensions of an input of a module, as the first operator that reads it has them."""
    for part in module.body:
        if isinstance(part, Operator):
            for access in part.inputs:
                if access.tensor == name:
                    return access.dims
        elif name in part.inputs:
            return _dims_of(part.module, part.module.inputs[part.inputs.index(name)])
    return ()  # nothing reads it


def _stages_of(model: Model, stages: int, asked: Sequence[int | None]) -> list[int]:
    """The stage of each block: as rules say, or else as even as possible.

    The layers, which are blocks of equal modules, whichever of their parameters are trained, are
    divided evenly if most blocks that have FLOPs are layers. If that leaves a remainder, the middle
    stages have one layer more. What is before and after the layers goes to their neighbours. Other
    models, and those with fewer layers than stages, are divided by FLOPs.
    """
    blocks = model.blocks
    if any(stage is not None for stage in asked):
        return _asked_stages(model, stages, asked)
    if stages > len(blocks):
        raise UserError(
            f"strategy: {stages} pipeline stages, but model {model.name} has only {len(blocks)} "
            "blocks"
        )
    work = [sum(one.flops for _, one in call.module.operators()) for call in blocks]
    shapes = [_shape_of(call.module) for call in blocks]
    counts = Counter(shape for shape, flops in zip(shapes, work, strict=True) if flops)
    layer, layers = max(counts.items(), key=lambda item: item[1], default=((), 0))
    if layers < stages or 2 * layers <= counts.total():
        return _balanced(work, stages)
    least, extra = divmod(layers, stages)
    first = (stages - extra + 1) // 2
    sizes = [least + (first <= stage < first + extra) for stage in range(stages)]
    of_layer = [stage for stage, size in enumerate(sizes) for _ in range(size)]
    of_block: list[int] = []
    seen = 0
    for shape in shapes:
        seen += shape == layer
        of_block.append(of_layer[max(0, seen - 1)])
    return of_block


def _shape_of(module: Module) -> tuple[object, ...]:
    """What is equal for layers that are alike, whatever is trained, and so kept besides outputs."""
    return tuple(
        (path, one.name, one.flops, tuple(map(one.elements, tensors)))
        for path, one in module.operators()
        for tensors in (one.inputs, one.outputs[:1], one.parameters)
    )


def _balanced(work: Sequence[int], stages: int) -> list[int]:
    """The stage of each block: the next one begins when a stage has its share of the FLOPs.

    ``work``: the FLOPs of each block.
    """
    of_block: list[int] = []
    done, stage = 0, 0
    for at, own in enumerate(work):
        left = len(work) - at
        if (
            stage < stages - 1
            and at > 0
            and ((done + own / 2) * stages >= (stage + 1) * sum(work) or left <= stages - 1 - stage)
        ):
            stage += 1
        of_block.append(stage)
        done += own
    return of_block


def _asked_stages(model: Model, stages: int, asked: Sequence[int | None]) -> list[int]:
    of_block: list[int] = []
    for call, stage in zip(model.blocks, asked, strict=True):
        before = of_block[-1] if of_block else 0
        here = before if stage is None else stage
        if not before <= here <= before + 1 or here >= stages:
            raise UserError(
                f"strategy: {call.name}: stage {here} after stage {before} of {stages}: stages "
                "must ascend without a gap"
            )
        of_block.append(here)
    if of_block[0] != 0 or of_block[-1] != stages - 1:
        raise UserError(
            f"strategy: {model.blocks[-1].name}: the last block is on stage {of_block[-1]}, but "
            f"there are {stages} stages"
        )
    return of_block
