"""Reads the calls of an exported PyTorch graph: tensors, FLOPs, and which parts they pass on."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, prod
from typing import Any

from byteprophet.errors import UserError
from byteprophet.simulate.models.traced_autograd import Learned, flops_of, learned
from byteprophet.simulate.models.traced_axes import VIEWS, module_paths, operator_name
from byteprophet.simulate.models.traced_flops import NO_FLOPS, Flops
from byteprophet.simulate.models.traced_flow import NOTHING, Passed, passed_on
from byteprophet.simulate.models.traced_parameters import LAYERS, is_cut, is_split_alike
from byteprophet.simulate.models.traced_parts import NO_GRADIENT
from byteprophet.simulate.models.traced_pieces import TAKES_APART, is_read_whole
from byteprophet.simulate.models.traced_runs import Run, Runs, tensors_among
from byteprophet.simulate.models.traced_spans import Spans, columns_of, first_axis

_CAUSAL = 5
"""The place of ``is_causal`` among the arguments of scaled_dot_product_attention."""
_ATTENTION = "scaled_dot_product_attention"
_REPEATING = frozenset(["expand", "expand_as", "broadcast_to"])


@dataclass
class Tensor:
    """A tensor of the graph.

    ``kind``: parameter, buffer, input, or made by a call (empty). ``of_inputs``: whether it depends
    on the model's inputs. ``spans``: see ``traced_spans``. ``whole``: of a parameter, whether each
    tensor-parallel rank has all of it, because operators that read it cannot split it alike.
    ``cut``: the name of a parameter whose pieces are parameters of their own. ``repeats``: the
    tensor of which it is a view that repeats axes of size 1 (``expand``).
    """

    name: str
    shape: tuple[int, ...]
    element_bytes: int
    kind: str = ""
    differentiable: bool = True
    per_sample: int = 0
    columns_grow: bool = False
    spans: Spans = ()
    of_inputs: bool = False
    whole: bool = False
    cut: str = ""
    repeats: Tensor | None = None

    @staticmethod
    def of(name: str, value: Any, kind: str = "") -> Tensor:
        """The description of a fake tensor."""
        numbers = value.dtype.is_floating_point or value.dtype.is_complex
        learns = numbers and kind in ("", "parameter")
        found = Tensor(name, tuple(value.shape), value.dtype.itemsize, kind, learns)
        found.of_inputs = kind == "input"
        return found

    def view(self, value: Any) -> Tensor:
        """A view of the same elements, without spans; or a piece, if it has fewer of them."""
        name = self.name
        if value.numel() != self.elements:
            first = int(value.storage_offset())
            name = f"{self.cut}[{first}:{first + value.numel()}]"
        seen = Tensor.of(name, value, self.kind)
        seen.differentiable, seen.of_inputs = self.differentiable, self.of_inputs
        seen.whole, seen.cut = self.whole, self.cut
        return seen

    @property
    def own_shape(self) -> tuple[int, ...]:
        """Its shape without repeats."""
        return self.shape if self.repeats is None else self.repeats.shape

    @property
    def is_free(self) -> bool:
        """Whether each rank can take the part that it needs: no activation has a gradient by it."""
        return not self.spans and not (self.differentiable and self.of_inputs)

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def columns(self) -> int:
        """The size of the last axis, unless it grows with the batch."""
        return 1 if self.columns_grow or not self.shape else max(1, self.shape[-1])

    @property
    def rows(self) -> int:
        """The product of all other axes, of one sample if the tensor grows with the batch."""
        return max(1, (self.per_sample or self.elements) // self.columns)


@dataclass
class Node:
    """A call.

    Attributes:
        modules: the paths of the modules around it, from the outermost one.
        given: the tensors that it reads, as its arguments are.
        flops: without those per sample.
        sample_flops: those per sample.
        learns: whether a gradient comes back by it.
        saved: the names of its inputs and outputs that autograd keeps.
        besides: what else autograd keeps.
        is_view: whether its outputs lie in the memory of what it reads.
        linear: how tensor-parallel ranks split a linear layer: "columns", "rows" or not (empty).
        passed: what it passes on otherwise.
    """

    target: str
    modules: tuple[str, ...]
    given: list[Tensor]
    outputs: list[Tensor]
    causal: bool = False
    is_output: bool = False
    flops: Flops = NO_FLOPS
    sample_flops: Flops = NO_FLOPS
    learns: bool = False
    saved: list[str] = field(default_factory=list)
    besides: list[Tensor] = field(default_factory=list)
    is_view: bool = False
    linear: str = ""
    passed: Passed = NOTHING

    @property
    def inputs(self) -> list[Tensor]:
        """The activations that it reads."""
        return [tensor for tensor in self.given if tensor.kind not in ("parameter", "buffer")]

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters that it reads."""
        return [tensor for tensor in self.given if tensor.kind == "parameter"]

    def flops_of(self, samples: int) -> Flops:
        """The FLOPs for so many samples."""
        return self.flops.plus(self.sample_flops.times(samples))

    @property
    def output_names(self) -> list[str]:
        """The names of its outputs."""
        return [tensor.name for tensor in self.outputs]

    @property
    def split(self) -> str:
        """The name of the dimension that it passes on; empty: it needs its inputs whole."""
        if not self.passed.spans:
            return ""
        by_columns = self.passed.spans[:1] == columns_of(self.outputs[0].shape)
        return "columns" if by_columns else "heads"

    @property
    def is_layer(self) -> bool:
        """Whether it is a linear layer: it multiplies an activation with a parameter."""
        return self.target == "linear" and _is_layer(self.given)


class Reader:
    """Reads the nodes of a graph, in their order. All uses of a parameter split it alike."""

    def __init__(self, name: str) -> None:
        """``name``: of the model."""
        self._name = name
        self._runs = Runs()
        self._attended: set[str] = set()  # outputs of attention
        self._tensors: dict[str, Tensor] = {}  # by FX node
        self._splits: dict[str, str] = {}  # by parameter
        self._shown: dict[str, Tensor] = {}  # what other tensors are views of, by their name
        self._keeps: dict[str, list[Tensor]] = {}  # by the name of a call's first output

    def placeholder(self, node: Any, name: str, kind: str, *, trained: bool) -> None:
        """What the graph is given: a parameter, which may be trained, a buffer or an input."""
        given = Tensor.of(name, node.meta["val"], kind)
        given.differentiable &= trained
        if kind == "parameter":
            given.whole = not is_split_alike(node)
            given.cut = given.name if is_cut(node) else ""
        self._tensors[node.name] = given

    def tensors(self, nodes: Sequence[Any]) -> list[Tensor]:
        """The tensors that ``nodes`` make or show."""
        return [self._tensors[one.name] for one in nodes if one.name in self._tensors]

    def call(self, node: Any) -> Node | None:
        """A call; None if it makes no tensor, or a view of the same elements.

        Raises:
            UserError: it multiplies tensors of different types.
        """
        value = node.meta.get("val")
        values = value if isinstance(value, (tuple, list)) else [value]
        target = operator_name(node)
        given = list(self._given(node))
        run = self._run(node)
        if given and _shows(given[0], values) and self._is_same(target, given[0], run):
            self._view(node, target, given[0], values)
            return None
        made = [Tensor.of(_output_name(node.name, at), one) for at, one in _numbered(values)]
        if not made:
            return None
        its = learned(node, run, learns=bool(self._differentiable(node)))
        flops = flops_of(target, run.flops if run else NO_FLOPS, self._arguments(node))
        paths = module_paths(node)
        if flops.forward:
            self._check_types(node, (*paths[-1:], target))
        is_view = run.is_view if run else target in VIEWS
        if is_view:
            self._shown |= {tensor.name: given[0] for tensor in made}
        if target == _ATTENTION:
            self._attended.add(made[0].name)
        target, given = _as_layer(target, given)
        for tensor, learns in zip(made, its.outputs, strict=True):
            tensor.differentiable = learns
            tensor.of_inputs = any(one.of_inputs for one in given)
        self._tensors.update({tensor.name: tensor for tensor in made})
        causal = node.kwargs.get("is_causal", len(node.args) > _CAUSAL and node.args[_CAUSAL])
        call = Node(target, paths, given, made, bool(causal), flops=flops, is_view=is_view)
        self._note_saved(call, its)
        self._split(call, node)
        if target in _REPEATING and is_view and len(given[0].shape) == len(made[0].shape):
            made[0].repeats = given[0]
        return call

    def _run(self, node: Any) -> Run | None:
        """A run of a node's operator; None if it has no schema."""
        if not hasattr(node.target, "_schema") or not tensors_among(node.meta.get("val")):
            return None
        parameters = [
            one.name
            for one in node.all_input_nodes
            if one.name in self._tensors and self._tensors[one.name].kind == "parameter"
        ]
        return self._runs.of(node, self._differentiable(node), parameters)

    def _differentiable(self, node: Any) -> list[str]:
        """The FX nodes that a node reads and that get gradients by it."""
        if NO_GRADIENT in node.meta:
            return []
        read = [one.name for one in node.all_input_nodes if one.name in self._tensors]
        return [name for name in read if self._tensors[name].differentiable]

    def _is_same(self, target: str, viewed: Tensor, run: Run | None) -> bool:
        """Whether an operator shows the memory of a tensor, and makes no copy.

        Parameters are never copied here, so that their uses stay known. Fused attention writes its
        output as (batch, tokens, heads, columns), whatever the meta device makes of it: models join
        its heads without a copy.
        """
        if run is not None and run.is_view:
            return True
        as_is = viewed.kind in ("parameter", "buffer") or viewed.name in self._attended
        return target in VIEWS and (run is None or as_is)

    def _check_types(self, node: Any, path: Sequence[str]) -> None:
        """Refuse products of different types, which the meta device allows and GPUs do not."""
        if path[-1] == _ATTENTION:
            return  # its mask may have another type, and all else is checked there
        types = {one.meta["val"].dtype for one in node.all_input_nodes if one.name in self._tensors}
        floating = sorted(str(one) for one in types if one.is_floating_point)
        if len(floating) > 1:
            raise UserError(
                f"model {self._name}: {'.'.join(path)}: multiplies {' and '.join(floating)}, which "
                "PyTorch does not: models run in bfloat16 here, as in training, so convert what "
                "has 32 bits, by .to(x.dtype)"
            )

    def _note_saved(self, call: Node, its: Learned) -> None:
        """Note what autograd keeps for a call. A layer keeps its input, in whatever layout."""
        if call.is_layer:
            kept = call.given[:1] if call.given[1].differentiable else []
        else:
            kept = [self._tensors[name] for name in its.saved_inputs]
            call.besides = [
                Tensor.of(f"{_output_name(call.outputs[0].name, at)}.kept", one)
                for at, one in enumerate(its.besides)
            ]
        kept += [call.outputs[at] for at in its.saved_outputs]
        self._keeps[call.outputs[0].name] = kept

    def finish(self, calls: Sequence[Node], outputs: Sequence[Tensor]) -> None:
        """Decide by which calls gradients come back, and what these keep until then.

        A gradient that no output of the model has comes nowhere. Who keeps a view keeps all memory
        that it shows.

        Args:
            calls: the calls, in order.
            outputs: what the model returns.
        """
        needed = {one.name for one in outputs if one.differentiable}
        viewers = {tensor.name: one for one in calls for tensor in one.outputs}
        for call in reversed(calls):
            for tensor in call.outputs:
                tensor.differentiable &= tensor.name in needed
            call.learns = any(one.differentiable for one in call.outputs)
            if not call.learns:
                call.besides, call.flops = [], Flops(call.flops.forward)
                continue
            needed |= {one.name for one in call.given if one.differentiable}
            for tensor in self._keeps[call.outputs[0].name]:
                keeper, kept = call, tensor
                while kept.name in self._shown:
                    keeper, kept = viewers[kept.name], self._shown[kept.name]
                if kept.kind not in ("parameter", "buffer") and kept.name not in keeper.saved:
                    keeper.saved.append(kept.name)

    def _given(self, node: Any) -> Iterator[Tensor]:
        if node.target is operator.getitem:
            yield self._tensors[_output_name(node.args[0].name, node.args[1])]
            return
        for one in node.all_input_nodes:
            if one.name in self._tensors:
                yield self._tensors[one.name]

    def _view(self, node: Any, target: str, viewed: Tensor, values: Sequence[Any]) -> None:
        for at, one in enumerate(values):
            seen = viewed.view(one)
            seen.differentiable &= target != "detach" and NO_GRADIENT not in node.meta
            seen.spans = passed_on(target, self._arguments(node), seen.shape).spans
            self._tensors[_output_name(node.name, at)] = seen

    def _split(self, call: Node, node: Any) -> None:
        """Decide how tensor-parallel ranks split a call, and what its outputs are then."""
        given = call.given
        if call.target == "embedding" and given[0].kind == "parameter":
            self._splits.setdefault(given[0].name, "columns")
        if call.is_layer and not any(one.whole for one in given):
            axis = first_axis(given[0])
            how = "columns" if axis is None else ""
            how = "rows" if axis == len(given[0].shape) - 1 else how
            call.linear = self._splits.setdefault(given[1].name, how)
        if call.linear == "columns":
            call.outputs[0].spans = columns_of(call.outputs[0].shape)
        if call.linear:
            return
        arguments = self._arguments(node)
        if _takes_apart(call, arguments) and is_read_whole(node.args[0]):
            return
        passed = [passed_on(call.target, arguments, one.shape) for one in call.outputs]
        if all(one.spans for one in passed):
            call.passed = passed[0]._replace(units=gcd(*(one.units for one in passed)))
            for tensor, its in zip(call.outputs, passed, strict=True):
                tensor.spans = its.spans
            self._read_unrepeated(call)

    def _read_unrepeated(self, call: Node) -> None:
        """Let a call read what each rank needs whole without its repeats, as keys of all heads.

        Their gradients are then summed over ranks before they are many.
        """
        shared = call.passed.shared
        own = {
            id(one): one.repeats
            for one in call.given
            if one.repeats is not None and not any(one is each for each in shared)
        }
        call.given = [own.get(id(one), one) for one in call.given]
        kept = self._keeps[call.outputs[0].name]
        self._keeps[call.outputs[0].name] = [own.get(id(one), one) for one in kept]

    def _arguments(self, node: Any) -> Mapping[str, Any]:
        """The arguments of an FX node by name, with tensors in place of nodes."""
        from torch.fx.node import map_arg

        if node.target is operator.getitem:
            return {"self": self._tensors[_output_name(node.args[0].name, node.args[1])]}
        if not hasattr(node.target, "_schema"):
            return {}
        listed = node.target._schema.arguments
        named = dict(zip((one.name for one in listed), node.args, strict=False)) | node.kwargs
        for one in listed:
            if one.has_default_value():
                named.setdefault(one.name, one.default_value)
        found: Any = map_arg(named, lambda one: self._tensors.get(one.name))  # type: ignore[arg-type,return-value]
        return dict(found)


def _numbered(values: Sequence[Any]) -> list[tuple[int, Any]]:
    """The tensors among ``values``, with their places."""
    import torch

    return [(at, one) for at, one in enumerate(values) if isinstance(one, torch.Tensor)]


def _shows(viewed: Tensor, values: Sequence[Any]) -> bool:
    """Whether ``values`` are the elements of a tensor, or pieces of a parameter that is cut."""
    import torch

    if not all(isinstance(one, torch.Tensor) for one in values):
        return False
    if viewed.cut:
        return all(one.numel() <= viewed.elements for one in values)
    return len(values) == 1 and values[0].numel() == viewed.elements


def _takes_apart(call: Node, arguments: Mapping[str, Any]) -> bool:
    """Whether a call takes its input apart along the axis of which ranks have parts."""
    if call.target not in TAKES_APART:
        return False
    (source, *_) = call.given
    dim = arguments.get("dim", 0)
    return isinstance(dim, int) and first_axis(source) == dim % len(source.shape)


def _as_layer(target: str, given: list[Tensor]) -> tuple[str, list[Tensor]]:
    """A product with a parameter is a linear layer, whatever it is called."""
    source, weight = LAYERS.get(target, (0, 0))
    if max(source, weight) == 0 or len(given) <= weight or len(given[weight].shape) != 2:
        return target, given
    others = [one for at, one in enumerate(given) if at not in (source, weight)]
    alike = [given[source], given[weight], *others]
    biased = all(one.kind == "parameter" for one in others)
    return ("linear", alike) if _is_layer(alike) and biased else (target, given)


def _is_layer(given: Sequence[Tensor]) -> bool:
    """Whether a linear operator multiplies an activation with a parameter."""
    if len(given) < 2:
        return False
    return given[0].kind not in ("parameter", "buffer") and given[1].kind == "parameter"


def _output_name(node: str, at: int) -> str:
    """The name of an output of a node."""
    return f"{node}.{at}" if at else node
