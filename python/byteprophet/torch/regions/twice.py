"""Finds out whether a module may run twice, as recomputing it does.

A recomputed forward sees torch's random numbers and the module's buffers of its first run
(``buffers.py``). Everything else that it reads must be as it was: its inputs, the state of other
generators, and its plain attributes. So the module runs in training mode on copies, once plain and
once recomputed, from the same seeds. What changed in the plain run is named; differences in the
results show the rest.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from byteprophet.errors import first_line
from byteprophet.job.strategy import Region
from byteprophet.torch.regions.buffers import ChangedBuffers
from byteprophet.torch.regions.calls import ModuleCall, versions_of
from byteprophet.torch.regions.fused import Forward, region_function
from byteprophet.torch.tensors.module_calls import hooked_part
from byteprophet.torch.tensors.nested import tensors_in, with_tensors

_NOT_PLAIN = ("_parameters", "_buffers", "_modules")
_SEED = 0
_ROUNDINGS = 16
"""So many roundings may lie between two runs: some kernels add in any order."""


def why_not_recomputed(calls: Sequence[ModuleCall]) -> str:
    """Why the modules of ``calls``, which follow each other, cannot run twice; "" if they can."""
    part = next(filter(None, (hooked_part(call.module) for call in calls)), "")
    if part:
        return f"its part {part!r} has hooks, which would run twice"
    first = calls[0]
    if first.versions != versions_of((first.inputs, first.named_inputs)):
        return "its input is changed in place, and is another when it runs again"
    try:
        return _difference(calls)
    except Exception as error:  # noqa: BLE001 - whatever the script's module raises
        return cannot_run_alone(error)


def cannot_run_alone(error: Exception) -> str:
    """The reason for which a mode is refused that ended with ``error``."""
    return f"it cannot run alone: {type(error).__name__}: {first_line(error)}"


def copied(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Copies of ``modules``. Results that these keep as attributes are copied as constants."""
    kept = (
        leaf
        for module in modules
        for part in module.modules()
        for leaf in tensors_in(list(vars(part).values()))
        if not leaf.is_leaf
    )
    memo: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in kept}
    return copy.deepcopy(list(modules), memo)


def as_leaves(inputs: Any) -> Any:
    """Copies of the tensors in ``inputs`` that take gradients if these do."""
    return with_tensors(
        lambda each: each.detach().clone().requires_grad_(each.requires_grad), inputs
    )


def as_results(inputs: Any) -> Any:
    """Copies of ``inputs``, which a module may change in place, as results of other modules."""
    return with_tensors(Tensor.clone, inputs)


def as_called(modules: Sequence[nn.Module], run: Forward) -> Forward:
    """What calls ``run`` in place of the forwards of ``modules``, as a job calls a region.

    Hooks of a single module run around it, such as one that makes a normalised weight. Modules
    that have hooks are in no region with others (``chains.py``).
    """
    if len(modules) > 1:
        return run
    setattr(modules[0], "forward", run)  # noqa: B010 - mypy takes it for a method
    return modules[0]


def _difference(calls: Sequence[ModuleCall]) -> str:
    modules = [call.module for call in calls]
    paths = tuple(call.path for call in calls)
    plain, again = nn.ModuleList(copied(modules)), nn.ModuleList(copied(modules))
    run = _function(plain, Region(paths))
    changed: list[str] = []

    def watched(*inputs: Any, **named: Any) -> Any:
        generators = _generators()
        attributes = [_Attributes(module) for module in plain]
        output = run(*inputs, **named)
        if generators != _generators():
            changed.append("it draws from the generators of Python or NumPy")
        for each in attributes:
            changed.extend(each.changes())
        return output

    expected = _train(plain, as_called(list(plain), watched), calls[0])
    if changed:
        return f"{changed[0]}, and would do so twice"
    recomputed = _function(again, Region(paths, recomputed=True))
    found = _train(again, as_called(list(again), recomputed), calls[0])
    if len(found) == len(expected) and all(map(_close, found, expected)):
        return ""
    return "its results or gradients differ if it runs twice"


def _function(modules: nn.ModuleList, region: Region) -> Forward:
    forwards = [module.forward for module in modules]
    return region_function(forwards, region, ChangedBuffers(list(modules)))


def _train(module: nn.Module, run: Forward, call: ModuleCall) -> list[Tensor]:
    """Outputs, buffers and gradients of one pass of ``module``, which ``run`` calls.

    Seeds all generators: the process that measures trains for nobody.
    """
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    np.random.seed(_SEED)
    module.zero_grad()
    leaves = as_leaves((call.inputs, call.named_inputs))
    inputs, named = as_results(leaves)
    outputs = list(tensors_in(run(*inputs, **named)))
    differentiable = [each for each in outputs if each.requires_grad]
    if differentiable:
        torch.autograd.backward(differentiable, [torch.randn_like(each) for each in differentiable])
    sources = (*module.parameters(), *tensors_in(leaves))
    gradients = [each.grad for each in sources if each.grad is not None]
    return [each.detach() for each in (*outputs, *module.buffers(), *gradients)]


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if torch.equal(one, other) or not one.is_floating_point():
        return torch.equal(one, other)
    apart = (one.double() - other.double()).norm()
    return bool(apart <= _ROUNDINGS * torch.finfo(one.dtype).eps * one.double().norm())


def _generators() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state()))


class _Attributes:
    """The plain attributes of a module and its parts, as they are now."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before = self._held()

    def changes(self) -> Iterator[str]:
        """Yield a sentence about each attribute that has changed since."""
        after = self._held()
        for place in dict.fromkeys((*self._before, *after)):
            if self._before.get(place) != after.get(place):
                part, name = place
                yield f"it changes its attribute {'.'.join(filter(None, (part, name)))!r}"

    def _held(self) -> dict[tuple[str, str], Any]:
        return {
            (path, name): _noted(value)
            for path, part in self._module.named_modules()
            for name, value in vars(part).items()
            if name not in _NOT_PLAIN
        }


def _noted(value: Any) -> Any:
    leaves, tree = _pytree.tree_flatten(value)
    return tree, [_noted_leaf(leaf) for leaf in leaves]


def _noted_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return _Same(leaf), leaf._version
    try:
        return pickle.dumps(leaf)
    except Exception:  # noqa: BLE001 - what cannot be pickled says so in many ways
        return _Same(leaf)


class _Same:
    """Equal to another one of the same object, which it keeps alive."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)
