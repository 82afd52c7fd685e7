"""Finds the chains of a model: modules of which each takes what the one before returned.

Only the next module may use what a module returned, because a region returns its last output only.
A run of a chain's modules can be one region. Modules without parameters join the one before them,
so that each *unit* of a chain computes something. A module that only calls a chain of its own, as
``nn.Sequential`` does, is opened: its modules take its place in the chain around it. It stays
closed if it is as small as a convolution with its normalisation. What the units of a chain consist
of is not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from byteprophet.torch.regions.calls import ModuleCall, further_versions, same
from byteprophet.torch.tensors.module_calls import has_hooks

_OPENED = 4
"""Modules with parameters that a chain of plain layers must have to be opened."""


@dataclass(frozen=True)
class Unit:
    """The smallest part of a region: a module with parameters, and those behind it without."""

    calls: tuple[ModuleCall, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the modules."""
        return tuple(call.path for call in self.calls)


def chains(root: ModuleCall) -> list[tuple[Unit, ...]]:
    """All chains of the model, the whole model as a chain of one unit first.

    Modules that were called more than once, or that have hooks of the script, are in no chain.
    """
    called = Counter(_modules(root))
    found: list[tuple[Unit, ...]] = [(Unit((root,)),)]
    _collect(root, called, found)
    return [chain for chain in found if any(_has_parameters(unit.calls[0]) for unit in chain)]


def _collect(call: ModuleCall, called: Counter[nn.Module], found: list[tuple[Unit, ...]]) -> None:
    """The chains among what ``call``'s forward called, and those inside what is in none."""
    for inner in call.calls:
        if called[inner.module] == 1 and not _usable(inner, called):
            _collect(inner, called, found)
    for run in _runs(call.calls, called):
        opened = [inner for each in run for inner in _opened(each, called)]
        units = tuple(_units(opened))
        found.append(units)
        if len(units) == 1:
            for each in opened:
                _collect(each, called, found)


def _runs(calls: Sequence[ModuleCall], called: Counter[nn.Module]) -> Iterator[list[ModuleCall]]:
    run: list[ModuleCall] = []
    for call in calls:
        usable = _usable(call, called)
        if run and not (usable and _follows(run[-1], call)):
            yield run
            run = []
        if usable:
            run.append(call)
    if run:
        yield run


def _usable(call: ModuleCall, called: Counter[nn.Module]) -> bool:
    """Whether a chain may have ``call``: it takes and returns a tensor by its place, once.

    Without gradients, regions run their modules one by one. If they run again with gradients in the
    backward pass, as within a reentrant checkpoint, a region would compute otherwise then.
    """
    return (
        called[call.module] == 1
        and isinstance(call.output, Tensor)
        and bool(call.inputs)
        and call.has_gradients
    )


def _follows(before: ModuleCall, call: ModuleCall) -> bool:
    """Whether only ``call`` took what ``before`` returned, and otherwise the same inputs."""
    return (
        call.inputs[0] is before.output
        and all(call in reader for reader in before.readers)
        and not has_hooks(before.module)
        and not has_hooks(call.module)
        and same(before.inputs[1:], call.inputs[1:])
        and same(before.named_inputs, call.named_inputs)
        and further_versions(before) == further_versions(call)
    )


def _opened(call: ModuleCall, called: Counter[nn.Module]) -> list[ModuleCall]:
    """``call``, or the calls that it consists of."""
    runs = list(_runs(call.calls, called))
    if (
        len(runs) != 1
        or len(runs[0]) != len(call.calls)
        or len(call.inputs) != 1
        or call.named_inputs
        or runs[0][0].inputs[0] is not call.inputs[0]
        or runs[0][-1].output is not call.output
        or has_hooks(call.module)
        or next(call.module.parameters(recurse=False), None) is not None
    ):
        return [call]
    run = runs[0]
    if not any(each.calls for each in run) and sum(map(_has_parameters, run)) < _OPENED:
        return [call]
    return [inner for each in run for inner in _opened(each, called)]


def _units(run: Sequence[ModuleCall]) -> Iterator[Unit]:
    unit: list[ModuleCall] = []
    for call in run:
        if unit and _has_parameters(call) and any(map(_has_parameters, unit)):
            yield Unit(tuple(unit))
            unit = []
        unit.append(call)
    yield Unit(tuple(unit))


def _has_parameters(call: ModuleCall) -> bool:
    return next(call.module.parameters(), None) is not None


def _modules(call: ModuleCall) -> Iterator[nn.Module]:
    yield call.module
    for inner in call.calls:
        yield from _modules(inner)
