"""A user's own PyTorch model as a tree of operators, traced by ``torch.export`` on the meta device.

The model is traced with two batch sizes, to see which tensors grow with the batch. Each tensor has
then the dimensions batch, rows and columns: columns are its last axis, rows all others. So the
batch of any operator can be split. Linear layers have the dimensions inner and columns, and can be
split along both. What tensor-parallel ranks usually split follows from the flow of data
(``traced_flow.py``): an operator has a dimension of this, columns or heads, in place of columns.

No parameter gets memory, and nothing is computed. Parameters and inputs have 16 bits, and what a
model converts to 32 bits has these. FLOPs are those that PyTorch counts, for each
operator and once more for the whole model, so that none is forgotten.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from byteprophet.errors import UserError
from byteprophet.simulate.models.module import Call, Model, Module
from byteprophet.simulate.models.own_code import Make, refusing_failures
from byteprophet.simulate.models.traced_axes import operator_name
from byteprophet.simulate.models.traced_first_run import run_once
from byteprophet.simulate.models.traced_in_place import check_in_place
from byteprophet.simulate.models.traced_nodes import Node, Reader, Tensor
from byteprophet.simulate.models.traced_operators import operator_of
from byteprophet.simulate.models.traced_parts import inline_parts
from byteprophet.simulate.models.traced_tree import Row, tree_of
from byteprophet.simulate.operation.operator import Operator

_BATCHES = (2, 3)
_RECURRENT = frozenset(["lstm", "gru", "rnn_tanh", "rnn_relu"])
_UNKNOWN_BYTES, _UNKNOWN_SHARE = 16 << 20, 0.01
"""Of buffers and unused parameters, so many bytes, or such a share of all, may be left out."""


@dataclass(frozen=True, eq=False)
class Traced:
    """A traced model: its calls, from which it is made for any number of samples."""

    name: str
    nodes: tuple[Node, ...]

    def __call__(self, samples: int) -> Model:
        """The model, with ``samples`` per micro-batch."""
        final = {name for node in self.nodes if node.is_output for name in node.output_names}
        inputs, outputs, body = tree_of(_operators(self.nodes, samples), final)
        calls = tuple(part if isinstance(part, Call) else _alone(part) for part in body)
        return Model(self.name, Module(calls, inputs, outputs), samples, 1)


def _alone(operator: Operator) -> Call:
    """A call of a module that is one operator."""
    inputs = tuple(one.tensor for one in operator.inputs)
    outputs = tuple(one.tensor for one in operator.outputs)
    return Call(operator.name, Module((operator,), inputs, outputs), inputs, outputs)


def traced(name: str, make: Make) -> Traced:
    """The model that ``make`` makes.

    Raises:
        UserError: it cannot be traced; the text says why.
    """
    traces = [_exported(name, make, batch) for batch in _BATCHES]
    with refusing_failures(f"model {name}", "cannot be traced"):
        few, more = (_nodes(name, trace) for trace in traces)
    if [node.target for node in few] != [node.target for node in more]:
        raise UserError(f"model {name}: other operators run for other batch sizes")
    if not any(one.learns for one in few):
        raise UserError(f"model {name}: no parameter gets a gradient, so that nothing is trained")
    nodes = tuple(_with_batch(name, one, two) for one, two in zip(few, more, strict=True))
    _check_flops(name, traces[0].flops, nodes)
    return Traced(name, nodes)


def _check_flops(name: str, counted: int, nodes: Sequence[Node]) -> None:
    """Refuse the model if its operators' FLOPs are not those that PyTorch counts."""
    ours = sum(operator.flops for _, operator in _operators(nodes, _BATCHES[0]))
    if ours != counted:
        raise UserError(
            f"model {name}: PyTorch counts {counted:,} FLOPs for a batch of {_BATCHES[0]}, but its "
            f"operators have {ours:,}"
        )


class _Exported(NamedTuple):
    """The graph of a forward pass.

    Attributes:
        graph: the FX graph.
        names: the names of parameters and buffers, by placeholder.
        trained: the placeholders of parameters, and whether each is trained.
        flops: those that PyTorch counts for the whole pass.
    """

    graph: Any
    names: Mapping[str, str]
    trained: Mapping[str, bool]
    flops: int


def _made(name: str, make: Make, batch: int) -> tuple[Any, tuple[Any, ...]]:
    made = make(batch)
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], tuple):
        raise UserError(
            f"model {name}: the function must return a module and a tuple of its inputs, got "
            f"{type(made).__name__}"
        )
    return made


def _exported(name: str, make: Make, batch: int) -> _Exported:
    import torch

    from byteprophet.simulate.models.traced_precision import ProductsIn16Bits, in_16_bits

    with refusing_failures(f"model {name}", "cannot be traced"), ProductsIn16Bits():
        with torch.device("meta"):
            module, inputs = in_16_bits(*_made(name, make, batch))
        flops = run_once(name, module, inputs)
        with warnings.catch_warnings():  # of what the graph does not keep, as an LSTM's lists
            warnings.simplefilter("ignore")
            program = torch.export.export(module, inputs)
        inline_parts(program.graph_module)
    signature = program.graph_signature
    _check_recurrence(name, program.graph)
    check_in_place(name, program.graph)
    _check_kept(name, module, program)
    parameters = signature.inputs_to_parameters
    every = dict(module.named_parameters(remove_duplicate=False))
    trained = {node: every[path].requires_grad for node, path in parameters.items()}
    return _Exported(program.graph, {**parameters, **signature.inputs_to_buffers}, trained, flops)


def _check_recurrence(name: str, graph: Any) -> None:
    """Refuse recurrent layers: the time of steps that wait for each other is not known."""
    called = {operator_name(node) for node in graph.nodes if node.op == "call_function"}
    if recurrent := sorted(called & _RECURRENT):
        raise UserError(
            f"model {name}: {recurrent[0]}: recurrent layers cannot be simulated: no time of steps "
            "that wait for each other is known"
        )


def _check_kept(name: str, module: Any, program: Any) -> None:
    """Refuse what takes memory, or saves work, of which operators know nothing."""
    used = {node.name for node in program.graph.nodes if node.users}
    signature = program.graph_signature
    read = {path for node, path in signature.inputs_to_parameters.items() if node in used}
    trained = dict(module.named_parameters())
    names = module.named_parameters(remove_duplicate=False)  # one may have several
    used_ids = {id(each) for path, each in names if path in read}
    unknown = {path: each.nbytes for path, each in module.named_buffers()}
    unknown |= {path: each.nbytes for path, each in trained.items() if id(each) not in used_ids}
    total_bytes = sum(unknown.values())
    if total_bytes > max(_UNKNOWN_BYTES, _UNKNOWN_SHARE * sum(p.nbytes for p in trained.values())):
        largest = max(unknown, key=lambda path: unknown[path])
        what = "used by no operator" if largest in trained else "a buffer"
        raise UserError(
            f"model {name}: {largest} is {what}, and memory does not count such tensors, which "
            f"have {total_bytes / (1 << 20):,.0f} MiB in all: take it out of the model"
        )


def _nodes(name: str, exported: _Exported) -> list[Node]:
    """The calls of a graph of model ``name``, with views resolved to what they view."""
    import torch

    found: list[Node] = []
    reader = Reader(name)
    for node in exported.graph.nodes:
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor):
            kind = "buffer" if node.name in exported.names else "input"
            kind = "parameter" if node.name in exported.trained else kind
            own = exported.names.get(node.name, node.name)
            reader.placeholder(node, own, kind, trained=exported.trained.get(node.name, False))
        elif node.op == "call_function":
            call = reader.call(node)
            found += [] if call is None else [call]
        elif node.op == "output":
            returned = reader.tensors(node.all_input_nodes)
            names = {one.name for one in returned}
            for made in found:
                made.is_output = bool(names & set(made.output_names))
            reader.finish(found, returned)
    return found


def _operators(nodes: Sequence[Node], samples: int) -> list[Row]:
    """The operators, with the modules around them; parameters that several read are shared."""
    rows: list[Row] = []
    uses = Counter(parameter.name for node in nodes for parameter in node.parameters)
    several = frozenset(name for name, count in uses.items() if count > 1)
    for node in nodes:
        operator = operator_of(node, samples, several)
        if operator is None:
            continue
        parameters = tuple(
            replace(access, shared=parameter.name) if parameter.name in several else access
            for access, parameter in zip(operator.parameters, node.parameters, strict=True)
        )
        rows.append((node.modules, replace(operator, parameters=parameters)))
    return rows


def _with_batch(name: str, few: Node, more: Node) -> Node:
    """``few``, which knows how its tensors and its FLOPs grow with the batch."""
    few.sample_flops = more.flops.less(few.flops)
    few.flops = few.flops.less(few.sample_flops.times(_BATCHES[0]))
    for one, two in zip(_tensors(few), _tensors(more), strict=True):
        grown = two.elements - one.elements
        if grown and one.elements != _BATCHES[0] * grown:
            raise UserError(
                f"model {name}: {few.target}: a tensor of {one.elements} elements for a batch of "
                f"{_BATCHES[0]} has {two.elements} for a batch of {_BATCHES[1]}: must be in "
                "proportion"
            )
        one.per_sample = grown
        one.columns_grow = bool(one.shape) and one.shape[-1:] != two.shape[-1:]
    return few


def _tensors(node: Node) -> Sequence[Tensor]:
    return [*node.inputs, *node.outputs, *node.besides]
