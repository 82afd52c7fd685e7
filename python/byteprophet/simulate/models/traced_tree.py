"""Groups operators, in the order of execution, by the modules that called them.

Modules whose operators are equal become one ``Module``, so that equal layers are compiled once.
The root's parts are what buckets, units and stages consist of. So a module that consists mostly of
equal layers, as ``model`` in ``LlamaForCausalLM``, is replaced there by its parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from byteprophet.simulate.models.module import Call, Module
from byteprophet.simulate.operation.operator import Operator

Row = tuple[tuple[str, ...], Operator]
"""The paths of the modules around an operator, and the operator."""
_Body = tuple[Operator | Call, ...]


def tree_of(rows: Sequence[Row], final: set[str]) -> tuple[tuple[str, ...], tuple[str, ...], _Body]:
    """The root's inputs, outputs and body. ``final``: tensors that the model returns."""
    body = _opened(_Tree().body(rows, 0, "", final))
    made = [name for part in body for name in _written(part)]
    read = dict.fromkeys(name for part in body for name in _read(part))
    inputs = tuple(name for name in read if name not in made)
    return inputs, tuple(name for name in made if name in final), body


def _opened(body: _Body) -> _Body:
    """A body without layers of its own, in which modules around layers are replaced by theirs."""
    if _layers(body):
        return body
    opened: list[Operator | Call] = []
    for part in body:
        if isinstance(part, Call) and 2 * _layer_flops(part) > _flops(part):
            opened += _opened(_parts(part))
        else:
            opened.append(part)
    return tuple(opened)


def _layers(body: _Body) -> list[Call]:
    """The calls that are layers: others are equal."""
    calls = [part for part in body if isinstance(part, Call) and _may_be_layer(part)]
    counts = Counter(id(call.module) for call in calls)
    return [call for call in calls if counts[id(call.module)] > 1]


def _may_be_layer(call: Call) -> bool:
    """Whether it has parameters, and calls others or is one of a list."""
    calls_others = any(isinstance(part, Call) for part in call.module.body)
    listed = call.name.rpartition(".")[2].isdecimal()
    return (calls_others or listed) and any(one.parameters for _, one in call.module.operators())


def _layer_flops(call: Call) -> int:
    """The FLOPs of the layers below."""
    body = call.module.body
    layers = _layers(body)
    if layers:
        return sum(map(_flops, layers))
    return sum(_layer_flops(part) for part in body if isinstance(part, Call))


def _flops(call: Call) -> int:
    return sum(one.flops for _, one in call.module.operators())


def _parts(call: Call) -> _Body:
    """The parts of a called module, with the caller's names."""
    module = call.module
    names = {
        tensor: f"{call.name}.{tensor}"
        for part in module.body
        for tensor in (*_read(part), *_written(part))
    }
    names |= dict(zip(module.inputs, call.inputs, strict=True))
    names |= dict(zip(module.outputs, call.outputs, strict=True))
    return tuple(
        replace(_renamed(part, names), name=f"{call.name}.{part.name}") for part in module.body
    )


class _Tree:
    def __init__(self) -> None:
        self._modules: dict[Hashable, Module] = {}

    def body(self, rows: Sequence[Row], depth: int, parent: str, wanted: set[str]) -> _Body:
        """The parts of a module. ``wanted``: what is read after it."""
        groups = [
            (path, list(group)) for path, group in groupby(rows, lambda row: _at(row[0], depth))
        ]
        later = _later([rows for _, rows in groups], wanted)
        parts: list[Operator | Call] = []
        names: dict[str, int] = {}
        for (path, group), needed in zip(groups, later, strict=True):
            if path is None:
                parts += (replace(one, name=_free(names, one.name)) for _, one in group)
                continue
            name = _free(names, path.removeprefix(f"{parent}.") if parent else path)
            parts.append(self._call(name, self.body(group, depth + 1, path, needed), needed))
        return tuple(parts)

    def _call(self, name: str, body: _Body, wanted: set[str]) -> Call:
        made = [tensor for part in body for tensor in _written(part)]
        read = dict.fromkeys(tensor for part in body for tensor in _read(part))
        inputs = tuple(tensor for tensor in read if tensor not in made)
        outputs = tuple(tensor for tensor in made if tensor in wanted)
        local = {tensor: f"in{at}" for at, tensor in enumerate(inputs)}
        local |= {tensor: f"made{at}" for at, tensor in enumerate(made)}
        renamed = tuple(_renamed(part, local) for part in body)
        key = (
            tuple(
                part if isinstance(part, Operator) else (part.name, id(part.module), part.inputs)
                for part in renamed
            ),
            tuple(local[tensor] for tensor in outputs),
        )
        if key not in self._modules:
            given = tuple(local[tensor] for tensor in inputs)
            self._modules[key] = Module(renamed, given, key[1])
        return Call(name, self._modules[key], inputs, outputs)


def _at(paths: Sequence[str], depth: int) -> str | None:
    return paths[depth] if depth < len(paths) else None


def _later(groups: Sequence[Sequence[Row]], wanted: set[str]) -> list[set[str]]:
    """For each group, the tensors that are read after it."""
    needed = set(wanted)
    found: list[set[str]] = []
    for group in reversed(groups):
        found.append(set(needed))
        needed |= {access.tensor for _, operator in group for access in operator.inputs}
    return found[::-1]


def _free(names: dict[str, int], name: str) -> str:
    """``name``, or with a number if it has occurred."""
    names[name] = names.get(name, 0) + 1
    return name if names[name] == 1 else f"{name}_{names[name]}"


def _read(part: Operator | Call) -> Iterable[str]:
    return part.inputs if isinstance(part, Call) else [one.tensor for one in part.inputs]


def _written(part: Operator | Call) -> Iterable[str]:
    return part.outputs if isinstance(part, Call) else [one.tensor for one in part.outputs]


def _renamed(part: Operator | Call, names: dict[str, str]) -> Operator | Call:
    if isinstance(part, Call):
        return replace(
            part,
            inputs=tuple(names[name] for name in part.inputs),
            outputs=tuple(names[name] for name in part.outputs),
        )
    return part.renamed(names)
