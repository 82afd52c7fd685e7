"""Measures the regions of a script's model, and ends the process.

``byteprophet optimize`` runs the recorded command once more, as one worker, with
``BYTEPROPHET_REGION_COSTS`` set. The first passes run as always. The third training pass, or the
fourth if ``DistributedOptimizer`` was not given the model, is recorded (``calls.py``), and gives
regions their inputs. Regions of equal structure are measured once. What was measured before counts
if modules and inputs are still alike.

With ``BYTEPROPHET_REGION_MEMORY``, the process does not end then, but after the iterations in which
it measures memory (``memory_probe.py``).

Regions are measured in the order of ``measuring_order.py``. When the time for it is over, the rest
stays unknown, and no strategy uses it. With memory, units are measured in any case: what fits
depends on which of them can be recomputed.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from byteprophet import _leaving
from byteprophet.digests import digest_of
from byteprophet.errors import warn
from byteprophet.job.region_costs import (
    ModeCost,
    RegionCost,
    RegionCosts,
    Unit,
    read_region_costs,
    write_region_costs,
)
from byteprophet.job.region_memory import RegionMemory, write_region_memory
from byteprophet.job.strategy import EAGER, RECOMPUTED
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.regions.calls import CallRecorder, ModuleCall
from byteprophet.torch.regions.chains import chains
from byteprophet.torch.regions.cost import measure_region, region_parameters
from byteprophet.torch.regions.measuring_order import measuring_order
from byteprophet.torch.regions.memory_probe import MemoryProbe
from byteprophet.torch.regions.root import at_first_forward
from byteprophet.torch.regions.twice import why_not_recomputed
from byteprophet.torch.tensors import module_calls

_PASSES_BEFORE = 1
"""Training passes before the one in which the recorder is made, which records the next one."""


def measure_and_end(
    optimizer: Optimizer,
    named: Sequence[tuple[str, Tensor]],
    settings: RuntimeSettings,
    model: nn.Module | None,
    *,
    shardable: bool,
) -> None:
    """Measure ``model``, which a strategy's regions would be installed in.

    If it is None, that is the one that holds the parameters ``named``, once its first forward pass
    begins. ``shardable``: whether ``optimizer`` may update shards of them.
    """

    def found(model: nn.Module) -> None:
        measure_model_and_end(model, lambda: optimizer, named, settings, shardable=shardable)

    if model is None:
        at_first_forward([parameter for _, parameter in named], found)
    else:
        found(model)


def measure_model_and_end(
    model: nn.Module,
    optimizer_of: Callable[[], Optimizer],
    named: Sequence[tuple[str, Tensor]],
    settings: RuntimeSettings,
    *,
    shardable: bool,
    reducer_bytes: int = 0,
) -> None:
    """Measure ``model``, which trains the parameters ``named``, in its third forward pass from now.

    ``optimizer_of`` is called then. ``reducer_bytes``: see ``RegionMemory``.
    """
    path = Path(settings.region_costs)
    names = {id(parameter): name for name, parameter in named}
    passes = 0

    def measure(root: ModuleCall) -> None:
        with _leaving.left_on_error():
            units, plain = _measure(root, names, path, settings)
            if not settings.region_memory:
                _leaving.leave_now(0)
            save = partial(_save_and_leave, Path(settings.region_memory), reducer_bytes)
            MemoryProbe(model, units, named, optimizer_of(), save, plain, shardable=shardable)

    def before(module: nn.Module, _inputs: object) -> None:
        nonlocal passes
        if module is model and module.training and torch.is_grad_enabled():
            passes += 1
            if passes > _PASSES_BEFORE:
                end()
                CallRecorder(model, measure)

    end = module_calls.listen(before)


def _save_and_leave(path: Path, reducer_bytes: int, memory: RegionMemory) -> None:
    write_region_memory(path, replace(memory, reducer_bytes=reducer_bytes))
    _leaving.leave_now(0)


def _measure(
    root: ModuleCall, names: Mapping[int, str], path: Path, settings: RuntimeSettings
) -> tuple[tuple[Unit, ...], frozenset[Unit]]:
    """Measure the regions.

    Returns the longest chain of units, and those of them that cannot be recomputed.
    """
    modes = settings.region_modes
    found = chains(root)
    all_units = tuple(tuple(unit.paths for unit in chain) for chain in found)
    units = max(all_units[1:], key=len, default=all_units[0])
    in_any_case = {*units} if settings.region_memory else set()
    calls = {call.path: call for call in _all_calls(root)}
    twice_asked = any(RECOMPUTED in mode.split("-") for mode in modes)

    @cache
    def not_twice(modules: Unit) -> str:
        return why_not_recomputed([calls[module] for module in modules]) if twice_asked else ""

    @cache
    def structure(modules: Unit) -> Hashable:
        run = [calls[module] for module in modules]
        held = region_parameters([call.module for call in run])
        return _structure(run), tuple(id(each) in names for each in held)

    def kind(modules: Unit) -> Hashable:
        return structure(modules), not_twice(modules)

    regions = _known(path, all_units, modes, lambda modules: _digest(structure(modules)))

    measured: dict[Hashable, Unit] = {kind(modules): modules for modules in regions}
    unmeasured: list[Unit] = []
    runs = list(measuring_order(all_units, calls, structure))
    seen = {structure(modules) for modules in regions}
    progressed = False  # each call measures one region at least
    began_s = time.monotonic()

    def late() -> bool:
        return progressed and time.monotonic() - began_s > settings.region_budget_s

    def takes_time(modules: Unit) -> bool:
        """``kind`` comes last: it runs modules of a new structure twice."""
        return structure(modules) not in seen or kind(modules) not in measured

    for number, modules in enumerate(runs, 1):
        if late() and modules not in in_any_case and takes_time(modules):
            unmeasured.append(modules)
            continue
        seen.add(structure(modules))
        run = [calls[module] for module in modules]
        held = region_parameters([call.module for call in run])
        trained = [id(parameter) in names for parameter in held]
        parameters = tuple(names[id(parameter)] for parameter in itertools.compress(held, trained))
        alike = _digest(structure(modules))
        twin = measured.setdefault(kind(modules), modules)
        said = ", ".join(module or "the whole model" for module in modules)
        if twin == modules and twin not in regions:
            progressed = True
            costs, refused = measure_region(run, (EAGER, *modes), not_twice(modules))
            if EAGER in costs:
                costs = {mode: _of_some(cost, trained) for mode, cost in costs.items()}
                regions[modules] = RegionCost(parameters, costs, refused, alike)
                print(f"regions: {len(measured)} measured, the last: {said}", flush=True)
            else:
                warn(f"{said}: not measured: {refused[EAGER]}")
        elif twin in regions:
            known = regions[twin]
            regions[modules] = RegionCost(parameters, known.modes, known.refused, alike)
        write_region_costs(path, RegionCosts(all_units, regions, (*unmeasured, *runs[number:])))
    return units, _told({unit: not_twice(unit) for unit in units})


def _told(reasons: Mapping[Unit, str]) -> frozenset[Unit]:
    """Say why units cannot be recomputed, and return these."""
    by_reason: dict[str, list[Unit]] = {}
    for unit, reason in reasons.items():
        if reason:
            by_reason.setdefault(reason, []).append(unit)
    for reason, units in by_reason.items():
        names = ", ".join(module or "the whole model" for unit in units for module in unit)
        print(f"regions: not recomputed: {names}: {reason}", flush=True)
    return frozenset(unit for unit, reason in reasons.items() if reason)


def _of_some(cost: ModeCost, trained: Sequence[bool]) -> ModeCost:
    """``cost`` with times of those parameters only that the optimizer updates."""
    return replace(cost, ready_ns=tuple(itertools.compress(cost.ready_ns, trained)))


def _known(
    path: Path,
    all_units: tuple[tuple[Unit, ...], ...],
    modes: Sequence[str],
    structure: Callable[[Unit], str],
) -> dict[Unit, RegionCost]:
    """What was measured before of the same model, if it is all that is asked for.

    ``structure``: the digest of what a region is now.
    """
    if not path.exists():
        return {}
    known = read_region_costs(path)
    if known.chains != all_units:
        return {}
    return {
        modules: region
        for modules, region in known.regions.items()
        if {*modes} <= {*region.modes, *region.refused} and region.structure == structure(modules)
    }


def _structure(calls: Sequence[ModuleCall]) -> Hashable:
    """Equal for runs of modules that cost the same."""
    first = calls[0]
    given = (first.inputs, tuple(sorted(first.named_inputs.items())))
    return tuple(_shape(call.module) for call in calls), repr(_input_shape(given))


def _digest(structure: Hashable) -> str:
    """The same in another process, in which objects have other addresses."""
    return digest_of(re.sub(r"\b0x[0-9a-f]+", "", repr(structure)))


def _shape(module: nn.Module) -> Hashable:
    held = (*module.named_parameters(), *module.named_buffers())
    return (
        type(module).__qualname__,
        repr(module),
        module.training,
        tuple((name, tuple(t.shape), t.dtype, t.requires_grad) for name, t in held),
    )


def _input_shape(given: object) -> object:
    if isinstance(given, Tensor):
        return tuple(given.shape), given.stride(), given.dtype, given.requires_grad
    if isinstance(given, (tuple, list)):
        return [_input_shape(each) for each in given]
    return type(given).__qualname__


def _all_calls(call: ModuleCall) -> Iterator[ModuleCall]:
    yield call
    for inner in call.calls:
        yield from _all_calls(inner)
