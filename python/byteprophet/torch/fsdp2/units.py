"""Which modules FSDP2 shards together, as a unit: those that have the parameters of a bucket.

``fully_shard`` takes modules, not parameters, because modules' calls say when a unit is needed. So
a bucket can be a unit if it has all parameters of a list of modules. What no other unit has belongs
to the root, the model itself: one bucket may be that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from byteprophet.errors import UserError


@dataclass(frozen=True)
class Unit:
    """``modules`` that FSDP2 shards together; none: the root, with what no other unit has."""

    names: tuple[str, ...]
    modules: tuple[nn.Module, ...] = ()


def units_of(
    model: nn.Module, names: Mapping[int, str], buckets: Iterable[Sequence[str]], where: str
) -> list[Unit]:
    """Turn ``buckets`` of parameters of ``model`` into units, in the same order.

    ``names``: of all parameters, by id. Those in no bucket go with their modules. If all buckets
    are lists of modules, the root's is the one of several modules that has the first parameter.
    Raises ``UserError``, which begins with ``where``, if more than one bucket
    is no list of modules.
    """
    bucketed = [tuple(bucket) for bucket in buckets]
    known = {name for bucket in bucketed for name in bucket}
    units = [Unit(each, tuple(_modules(model, names, {*each}, known))) for each in bucketed]
    left = [next(iter(_left(unit, names)), "") for unit in units]
    roots = [number for number, name in enumerate(left) if name]
    if len(roots) > 1:
        one, other = (left[number] for number in roots[:2])
        raise UserError(
            f"{where}: FSDP2's units are lists of modules, and parameter {other!r} has no module "
            f"whose parameters are all in its bucket; neither has {one!r}, and only one bucket may "
            "be what no module has alone"
        )
    first = next((names[id(each)] for each in model.parameters() if names[id(each)] in known), "")
    for number, unit in enumerate(units):
        is_loose = model in unit.modules or (len(unit.modules) > 1 and first in unit.names)
        if number in roots or (not roots and is_loose):
            units[number] = Unit(unit.names)
        else:
            _check_tied(model, unit, names, where)
    return units


def _left(unit: Unit, names: Mapping[int, str]) -> Iterator[str]:
    """The parameters of ``unit`` that its modules do not have."""
    held = {names[id(each)] for module in unit.modules for each in module.parameters()}
    return (name for name in unit.names if name not in held)


def _modules(
    module: nn.Module, names: Mapping[int, str], bucket: Collection[str], known: Collection[str]
) -> Iterator[nn.Module]:
    """The largest modules all of whose parameters that are ``known`` are in ``bucket``."""
    held = {names[id(each)] for each in module.parameters()} & set(known)
    if not held:
        return
    if held <= set(bucket) and _is_called(module):
        yield module
        return
    for child in module.children():
        yield from _modules(child, names, bucket, known)


def _is_called(module: nn.Module) -> bool:
    """Whether ``module`` computes something; a list of modules does not."""
    return type(module).forward is not nn.Module.forward


def _check_tied(model: nn.Module, unit: Unit, names: Mapping[int, str], where: str) -> None:
    """Refuse a unit with a parameter that a module outside of it has, too."""
    inside = {id(each) for module in unit.modules for each in module.modules()}
    held = {id(each) for module in unit.modules for each in module.parameters()}
    for path, module in model.named_modules():
        for name, each in module.named_parameters(recurse=False):
            if id(each) in held and id(module) not in inside:
                raise UserError(
                    f"{where}: parameter {names[id(each)]!r} is also {name!r} of {path!r}, outside "
                    "of its unit, and FSDP2 would make two of it: put both into the bucket of what "
                    "no module has alone"
                )


def check_parameters(model: nn.Module, named: Sequence[tuple[str, Tensor]]) -> None:
    """Raise ``UserError`` if ``fully_shard`` cannot shard ``model`` on a CPU.

    ``named``: its parameters.
    """
    why = next(filter(None, (_why_not(name, each) for name, each in named)), "")
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            why = why or f"the gradient of {path!r} is sparse"
    if why:
        raise UserError(f"sync='fsdp2': the model cannot be sharded: {why}")


def _why_not(name: str, parameter: Tensor) -> str:
    if parameter.device.type != "cpu":
        return f"parameter {name!r} is on {parameter.device}, and its transfers overlap on CPUs"
    if not parameter.dim():
        return f"parameter {name!r} is a scalar: make it a tensor of one element"
    if not parameter.is_contiguous():
        return f"parameter {name!r} has strides {parameter.stride()}: make it contiguous"
    if parameter.is_complex() and parameter.requires_grad:
        return f"parameter {name!r} is complex, and torch updates complex DTensors by other rules"
    if type(parameter) is not nn.Parameter:
        return f"parameter {name!r} is a {type(parameter).__name__}, not a plain parameter"
    hooks: object = getattr(parameter, "_post_accumulate_grad_hooks", None)
    if parameter._backward_hooks or hooks:
        return f"parameter {name!r} has hooks, which would see no gradients"
    return ""


def check_types(named: Sequence[tuple[str, Tensor]], units: Iterable[Unit], where: str) -> None:
    """Raise ``UserError`` if gradients of two types would travel together."""
    parameters = dict(named)
    for unit in units:
        types: dict[object, str] = {}
        for name in unit.names:
            if parameters[name].requires_grad:
                types.setdefault(parameters[name].dtype, name)
        if len(types) > 1:
            (one, first), (other, second) = [*types.items()][:2]
            raise UserError(
                f"{where}: {first!r} is of {one} and {second!r} of {other}, and they share a unit"
            )
