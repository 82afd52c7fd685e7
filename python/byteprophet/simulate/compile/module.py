"""Compiles a module: its operators' splits, the collectives between them, and what it keeps.

Forward, an operator needs each input in the layout that its splits imply, and collectives bring the
tensor from the layout in which it was made into that one. Backward, the operators that read a
tensor add up its gradient, which collectives bring into the layout in which the tensor was made. So
Megatron's pairs of collectives follow from the splits alone.

A module is compiled once for equal scopes and layouts of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from byteprophet.errors import UserError
from byteprophet.simulate.compile.chunks import Chunks
from byteprophet.simulate.compile.compiled import Compiled, LocalParameter, Value
from byteprophet.simulate.compile.repeats import in_micro_batches, recomputed
from byteprophet.simulate.compile.steps import Collective, CollectiveKind, Compute, Phase, Step
from byteprophet.simulate.compile.transform import (
    RING,
    gathered_axes,
    in_ring,
    ring_of_pytorch,
    transform,
)
from byteprophet.simulate.models.module import Call, Module
from byteprophet.simulate.operation.layout import (
    Layout,
    Splits,
    input_gradient_layout,
    input_layout,
    local_bytes,
    output_layout,
)
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.operation.operator import WEIGHTED, Access, Kind, Operator
from byteprophet.simulate.tree.scope import Scope
from byteprophet.simulate.tree.strategy import Strategy

_PARTS_IN_RING = 4
"""Parts of keys or values at a time in ring attention: the one that attention reads, the one that
arrives, and the gradients of both. PyTorch gathers all parts nevertheless (``ring_of_pytorch``)."""


@dataclass
class _Version:
    """A tensor in the layout that an operator needs, made from that in which it is stored.

    ``learns``: whether an operator that reads it gives it a gradient. ``ring``: how often it is
    passed around (``in_ring``); None: it is not.
    """

    stored: Layout
    layout: Layout
    whole_bytes: int
    learns: bool = False
    summed: set[str] = field(default_factory=set)
    ring: Mapping[CollectiveKind, float] | None = None


@dataclass(frozen=True)
class _Ran:
    """An operator that ran.

    ``gives``: whether an input gets a gradient. ``again``: the collectives with which its backward
    pass begins, because inputs are gathered again.
    """

    operator: Operator
    splits: Splits
    gives: bool
    again: tuple[Collective, ...]


_Tape: TypeAlias = list[_Version | _Ran | Compiled]


class Compiler:
    """Compiles modules under one strategy."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._mesh = strategy.mesh
        self._done: dict[tuple[object, ...], Compiled] = {}
        self._chunks = Chunks()
        self.matched: set[int] = set()
        """The rules that have matched a node."""
        self.axes: set[str] = set()
        """The mesh axes over which an operator is split."""
        self.rings = 0
        """The tensors that are passed around for ring attention."""

    def compile(self, module: Module, scope: Scope, inputs: Sequence[Layout]) -> Compiled:
        """Compile a module whose inputs come in these layouts.

        Raises:
            UserError: a split cannot be; the text names the node's path.
        """
        key = (id(module), scope, tuple(inputs))
        if key not in self._done:
            self.matched |= scope.matched
            compiled = _Module(self, module, scope, inputs).compiled()
            if scope.recompute:
                compiled = recomputed(compiled, module, self._strategy)
            if scope.micro_batches > 1:
                one = replace(scope, micro_batches=1, max_ongoing=0)
                chunk = self.compile(self._chunks.cut(module, scope), one, inputs)
                compiled = in_micro_batches(compiled, chunk, scope, module)
            self._done[key] = compiled
        return self._done[key]

    def scope(self, parent: Scope, name: str) -> Scope:
        """The scope of a child."""
        scope = parent.child(self._strategy, name)
        self.matched |= scope.matched
        return scope

    def splits(self, scope: Scope, operator: Operator) -> Splits:
        """The splits of an operator."""
        found = scope.splits_of(operator, self._mesh)
        self.axes.update(*found.values())
        return found

    def passes_around(self, operator: Operator) -> bool:
        """Whether an operator gets its keys and values by ring attention."""
        return self._strategy.ring and operator.kind is Kind.ATTENTION

    def rounds(self, operator: Operator) -> Mapping[CollectiveKind, float]:
        """How often the keys and values of an operator are passed around (``in_ring``)."""
        if not self._strategy.copies:
            return RING
        return ring_of_pytorch(self._mesh.cp, operator.size.get("queries", 1))

    def gathers_again(self, operator: Operator, version: _Version) -> tuple[str, ...]:
        """The mesh axes over which the backward pass gathers an input once more.

        So do ring attention, and Megatron-LM's linear layers and attention. PyTorch keeps what it
        gathered. So do experts, for which Megatron-LM's dispatcher gathers tokens before.
        """
        once = self._strategy.copies or "experts" in operator.size
        if once and version.ring is None:
            return ()
        return gathered_axes(version.stored, version.layout)

    def keeps_gate(self, operator: Operator) -> bool:
        """Whether an activation is two operators, of which the first keeps what its gate gives."""
        is_gated = operator.kind is Kind.MEMORY and operator.size.get("gates", 1) > 1
        return self._strategy.eager and is_gated

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self._mesh


class _Module:
    """One module while it is compiled."""

    def __init__(
        self, compiler: Compiler, module: Module, scope: Scope, inputs: Sequence[Layout]
    ) -> None:
        self._compiler = compiler
        self._mesh = compiler.mesh
        self._module = module
        self._scope = scope
        self._stored = dict(zip(module.inputs, inputs, strict=True))
        self._values: dict[str, Value] = {}
        self._versions: dict[tuple[str, Layout], _Version] = {}
        self._tape: _Tape = []
        self._forward: list[Step] = []
        self._inputs: dict[tuple[str, Layout], int] = {}
        self._saved: dict[tuple[str, Layout], int] = {}
        self._peak_bytes = 0
        self._recomputed_bytes = 0
        self._parameters: list[LocalParameter] = []

    def compiled(self) -> Compiled:
        for part in self._module.body:
            scope = self._compiler.scope(self._scope, part.name)
            if isinstance(part, Operator):
                self._operator(part, scope)
            else:
                self._call(part, scope)
        backward: list[Step] = []
        for entry in reversed(self._tape):
            backward += self._backward(entry)
        return Compiled(
            tuple(self._forward),
            tuple(backward),
            tuple(self._values[name] for name in self._module.outputs),
            self._inputs,
            self._saved,
            self._peak_bytes - sum(self._saved.values()),
            self._recomputed_bytes,
            tuple(self._parameters),
        )

    def _operator(self, operator: Operator, scope: Scope) -> None:
        if scope.recompute or scope.micro_batches > 1:
            raise UserError(
                f"strategy: {scope.path}: an operator cannot be recomputed or scheduled by itself; "
                "name the module around it"
            )
        splits = self._compiler.splits(scope, operator)
        learns = any(access.differentiable for access in operator.outputs)
        working = 0
        versions = {}
        for access in operator.inputs:
            version = self._version(operator, access, splits)
            versions[access.tensor] = version
            if access.differentiable:
                version.learns = True
                version.summed |= set(input_gradient_layout(access, splits).partial)
                self._note_input(operator, access)
            if access.differentiable or not learns:
                working += self._working_bytes(operator, access, version)
        for access in operator.outputs:
            layout = output_layout(access, splits)
            size = local_bytes(operator, access, layout, self._mesh)
            whole = operator.elements(access) * access.element_bytes
            self._stored[access.tensor] = layout
            self._values[access.tensor] = Value(layout, whole, size, access.differentiable)
            working += size * (access.differentiable or not learns)
            if access.tensor in operator.saved:
                self._saved[access.tensor, layout] = size
            if self._compiler.keeps_gate(operator):
                self._saved[f"{access.tensor}.gate", layout] = size
        again: list[Collective] = []
        for access in operator.inputs:
            if access.tensor in operator.saved:
                again += self._save(operator, access, versions[access.tensor])
        for access in operator.temporary:
            layout = output_layout(access, splits)
            working += local_bytes(operator, access, layout, self._mesh)
        self._work_with(working)
        self._parameters += self._local_parameters(operator, splits, scope)
        gives = any(access.differentiable for access in operator.inputs)
        self._tape.append(_Ran(operator, splits, gives, tuple(again)))
        self._forward.append(Compute(operator, tuple(splits.items()), Phase.FORWARD))
        if operator.features is not None:
            self._complete(operator.outputs)

    def _complete(self, outputs: Sequence[Access]) -> None:
        """Sum partial outputs once, as layers of DTensor do, and not wherever they are read."""
        for access in outputs:
            value = self._values[access.tensor]
            whole = Layout(value.layout.split)
            if access.differentiable:
                self._forward += transform(
                    value.layout, whole, value.whole_bytes, self._mesh, Phase.FORWARD
                )
            self._stored[access.tensor] = whole
            self._values[access.tensor] = replace(value, layout=whole)

    def _local_parameters(
        self, operator: Operator, splits: Splits, scope: Scope
    ) -> Iterator[LocalParameter]:
        linear = operator.allows_8_bits and "experts" not in operator.size
        other_samples: set[str] = set()
        if operator.features is not None and "batch" not in operator.size:
            # All data-parallel ranks do this, and their gradients differ.
            axes = (axis for axis, dims in scope.splits if "batch" in dims)
            other_samples = {axis for axis in axes if self._mesh.sizes[axis] > 1}
        for at, access in enumerate(operator.parameters):
            layout = input_layout(access, splits)
            summed = splits
            if at and operator.kind in WEIGHTED:  # a bias, whose gradient is one of the output
                made = operator.outputs[0].dims
                summed = {dim: axes for dim, axes in splits.items() if dim in made}
            yield LocalParameter(
                operator.name,
                operator.elements(access) // layout.parts(self._mesh),
                tuple(sorted({*input_gradient_layout(access, summed).partial, *other_samples})),
                access.shared,
                linear=linear and at == 0,
                trained=access.differentiable,
            )

    def _note_input(self, operator: Operator, access: Access) -> None:
        """Note the bytes of a tensor that the module is given, as it comes."""
        if access.tensor in self._module.inputs:
            layout = self._stored[access.tensor]
            size = local_bytes(operator, access, layout, self._mesh)
            self._inputs[access.tensor, layout] = size

    def _work_with(self, working_bytes: int) -> None:
        """Note what the backward pass of the last part needs, besides what is kept up to it.

        If it has none, this is what its forward pass reads and writes.
        """
        kept = sum(self._saved.values())
        self._peak_bytes = max(self._peak_bytes, kept + working_bytes)

    def _working_bytes(self, operator: Operator, access: Access, version: _Version) -> int:
        """The bytes of the gradient of an input, and of an input that cp ranks gather again.

        Of one that goes around a ring, those of its parts.
        """
        if version.ring == RING:
            return _PARTS_IN_RING * local_bytes(operator, access, version.stored, self._mesh)
        twice = "cp" in self._compiler.gathers_again(operator, version)
        return (1 + twice) * local_bytes(operator, access, version.layout, self._mesh)

    def _save(
        self, operator: Operator, access: Access, version: _Version
    ) -> tuple[Collective, ...]:
        """Keep an input. One that the backward pass gathers again is kept as it was before.

        Returns the collectives that the operator's backward pass waits for. Those over tp, and
        those of ring attention, are behind other work.
        """
        axes = self._compiler.gathers_again(operator, version)
        layout = version.stored if axes else version.layout
        size = local_bytes(operator, access, layout, self._mesh)
        self._saved.setdefault((access.tensor, layout), size)
        if "cp" not in axes or version.ring is not None:
            return ()
        whole = version.whole_bytes
        return transform(version.stored, version.layout, whole, self._mesh, Phase.BACKWARD)

    def _version(self, operator: Operator, access: Access, splits: Splits) -> _Version:
        """The tensor in the layout that ``operator`` needs; made now unless it is there."""
        wanted = input_layout(access, splits)
        key = (access.tensor, wanted)
        if key not in self._versions:
            stored = self._stored[access.tensor]
            whole = operator.elements(access) * access.element_bytes
            self._versions[key] = version = _Version(stored, wanted, whole)
            self._tape.append(version)
            steps = transform(stored, wanted, whole, self._mesh, Phase.FORWARD)
            if self._compiler.passes_around(operator):
                rounds = self._compiler.rounds(operator)
                steps, changed = in_ring(steps, rounds)
                version.ring = rounds if changed else None
                self._compiler.rings += changed
            self._forward += steps
        return self._versions[key]

    def _call(self, call: Call, scope: Scope) -> None:
        if scope.limits_ongoing:
            raise UserError(
                f"strategy: {scope.path}: max_ongoing: only the last block of a model has its "
                "backward pass before the forward pass of all others has ended"
            )
        if self._is_plain(call, scope):
            self._one_operator(call, scope)
            return
        layouts = [self._stored[name] for name in call.inputs]
        compiled = self._compiler.compile(call.module, scope, layouts)
        for name, value in zip(call.outputs, compiled.outputs, strict=True):
            self._stored[name] = value.layout
            self._values[name] = value
        names = dict(zip(call.module.inputs, call.inputs, strict=True))
        for (tensor, layout), size in compiled.inputs.items():
            if names[tensor] in self._module.inputs:
                self._inputs[names[tensor], layout] = size
        names |= dict(zip(call.module.outputs, call.outputs, strict=True))
        for (tensor, layout), size in compiled.saved.items():
            name = names.get(tensor, f"{call.name}.{tensor}")
            self._saved.setdefault((name, layout), size)
        self._work_with(compiled.transient_bytes)
        self._recomputed_bytes += compiled.recomputed_bytes
        self._parameters += (
            replace(one, path=f"{call.name}.{one.path}") for one in compiled.parameters
        )
        self._forward += compiled.forward
        self._tape.append(compiled)

    @staticmethod
    def _is_plain(call: Call, scope: Scope) -> bool:
        """Whether a call is one operator, which runs as any other."""
        one = len(call.module.body) == 1 and isinstance(call.module.body[0], Operator)
        return one and not scope.recompute and scope.micro_batches == 1

    def _one_operator(self, call: Call, scope: Scope) -> None:
        """A module of one operator shares versions of its inputs with what is beside it.

        So several linear layers that read one tensor have one sum of its gradients.
        """
        (operator,) = call.module.body
        assert isinstance(operator, Operator)
        names = dict(zip(call.module.inputs, call.inputs, strict=True))
        names |= dict(zip(call.module.outputs, call.outputs, strict=True))
        first = len(self._parameters)
        self._operator(
            operator.renamed(names, call.name), self._compiler.scope(scope, operator.name)
        )
        self._parameters[first:] = (
            replace(one, path=f"{call.name}.{one.path}") for one in self._parameters[first:]
        )

    def _backward(self, entry: _Version | _Ran | Compiled) -> list[Step]:
        if isinstance(entry, Compiled):
            return list(entry.backward)
        if isinstance(entry, _Version):
            if not entry.learns:
                return []
            gradient = Layout(entry.layout.split, tuple(sorted(entry.summed)))
            target = entry.stored.gradient
            moves = transform(gradient, target, entry.whole_bytes, self._mesh, Phase.BACKWARD)
            return list(in_ring(moves, entry.ring)[0] if entry.ring else moves)
        operator, items = entry.operator, tuple(entry.splits.items())
        steps: list[Step] = []
        weighted = operator.kind in WEIGHTED
        if entry.gives or (operator.trained and not weighted):
            steps.append(Compute(operator, items, Phase.BACKWARD))
        if operator.trained and weighted:
            steps.append(Compute(operator, items, Phase.WEIGHT))
        return [*entry.again, *steps] if steps else []
