"""Measures the memory that a script's iterations take, for every mix of recomputed units.

The script trains on, and each of the next iterations runs with another mix (``memory/mixes.py``),
followed operation by operation: forward, loss, backward and update, from one iteration's first
forward pass to the next one's. Tensors that the script holds all the time, such as its data, count
as well, if Python knows them.

Threads: everything runs in the training thread. A job of one worker sends nothing, so nobody else
touches tensors meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode

from byteprophet._leaving import left_on_error
from byteprophet.errors import UserError
from byteprophet.job.region_costs import Unit
from byteprophet.job.region_memory import ParameterMemory, RegionMemory
from byteprophet.job.strategy import Region
from byteprophet.memory.kernels import KernelMemory
from byteprophet.memory.liveness import (
    Liveness,
    Timeline,
    Use,
    is_ordinary,
    tensors_of_python,
)
from byteprophet.memory.mixes import Marker, patterns, phases_of
from byteprophet.memory.peak import size_of
from byteprophet.memory.runtimes import parameters_of, update_bytes_of
from byteprophet.torch.regions.fused import RegionForward
from byteprophet.torch.tensors import module_calls


class MemoryProbe:
    """Follows the next iterations of ``model``, and gives ``done`` what was measured.

    ``units``: those that may be recomputed, in forward order; those in ``plain`` cannot, and never
    are. ``named``: the parameters that ``optimizer`` updates, and ``shardable``: whether it may
    update shards of them. Raises ``UserError`` if the model is compiled. What cannot be followed
    later ends the process.
    """

    def __init__(
        self,
        model: nn.Module,
        units: Sequence[Unit],
        named: Sequence[tuple[str, Tensor]],
        optimizer: Optimizer,
        done: Callable[[RegionMemory], None],
        plain: Set[Unit] = frozenset(),
        *,
        shardable: bool,
    ) -> None:
        if any(map(module_calls.is_compiled, model.modules())):
            raise UserError("memory: the script compiles its model: what that takes is not known")
        self._model, self._units, self._named = model, tuple(units), named
        self._optimizer = optimizer
        self._done = done
        self._plain = plain
        self._shardable = shardable
        self._liveness = Liveness()
        self._trains = False  # the latest forward pass of the model
        marker = Marker(self._liveness, lambda: self._trains)
        modules = dict(model.named_modules())
        self._regions = []
        for place, unit in enumerate(self._units):
            marker.watch(place, modules[unit[0]], modules[unit[-1]])
            self._regions.append(RegionForward(Region(unit), [modules[path] for path in unit]))
        self._left = patterns(len(self._units))
        self._traced: dict[tuple[int, ...], Timeline] = {}
        self._running: tuple[int, ...] | None = None
        self._stepped = False
        self._end_steps = register_optimizer_step_post_hook(self._after_step)
        self._end_calls = module_calls.listen(self._before_call)

    def _after_step(self, *_: Any) -> None:
        self._stepped = True

    def _before_call(self, module: nn.Module, _inputs: object) -> None:
        if module is not self._model:
            return
        self._trains = module.training and torch.is_grad_enabled()
        if not self._trains or not self._stepped:
            return  # an evaluation, or another micro-batch of the same iteration
        self._stepped = False
        with left_on_error():
            self._begin_iteration()

    def _begin_iteration(self) -> None:
        if self._running is None:
            self._track_all()
        else:
            self._end_iteration(self._running)
        if not self._left:
            self._end_steps.remove()
            self._end_calls()
            self._done(self._result())
            return
        self._running = self._left.pop(0)
        for region, unit, state in zip(self._regions, self._units, self._running, strict=True):
            region.run_as(Region(unit, recomputed=bool(state) and unit not in self._plain))
        self._liveness.restart()
        self._liveness.__enter__()  # type: ignore[no-untyped-call]

    def _end_iteration(self, pattern: tuple[int, ...]) -> None:
        if _get_current_dispatch_mode() is not self._liveness:
            raise UserError("memory: the script enters a torch dispatch mode in its iterations")
        self._liveness.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        timeline = self._liveness.timeline
        for name, parameter in self._named:
            assert isinstance(parameter, nn.Parameter)
            timeline.parameters[name] = size_of(parameter, self._optimizer)
        self._traced[pattern] = timeline
        print(f"regions: memory of mix {len(self._traced)} measured", flush=True)

    def _track_all(self) -> None:
        """Count what lives before the first iteration."""
        liveness = self._liveness
        gc.collect()  # copies of modules, on which regions were measured, are in cycles
        liveness.track(filter(is_ordinary, tensors_of_python()), Use.INPUTS)
        liveness.track(filter(is_ordinary, self._model.buffers()), Use.BUFFERS)
        liveness.track(filter(is_ordinary, self._model.parameters()), Use.PARAMETERS)
        parameters = self._model.parameters()
        gradients = (each.grad for each in parameters if each.grad is not None)
        liveness.track(filter(is_ordinary, gradients), Use.GRADIENTS)
        state = [value for each in self._optimizer.state.values() for value in each.values()]
        tensors = (value for value in state if isinstance(value, Tensor))
        liveness.track(filter(is_ordinary, tensors), Use.OPTIMIZER_STATE)
        liveness.follow([(name, _parameter(each)) for name, each in self._named])

    def _result(self) -> RegionMemory:
        phases = phases_of(self._traced, KernelMemory())
        timeline = next(iter(self._traced.values()))
        begins = [place for place, _ in timeline.marks]
        parameters = parameters_of(timeline)
        if not parameters:
            raise UserError("memory: no parameter got a gradient in the iterations followed")
        by_phase = _by_phase(parameters, begins)
        for name, each in self._named:
            if each.requires_grad and name not in by_phase:  # unused, but part of a bucket
                size = timeline.parameters[name]
                by_phase[name] = ParameterMemory(
                    size.elements, size.size_bytes, size.state_bytes, 0, 0, len(phases.owner)
                )
        return RegionMemory(
            self._units,
            phases,
            by_phase,
            update_bytes_of(timeline),
            self._shardable,
        )


def _by_phase(
    parameters: Mapping[str, ParameterMemory], begins: Sequence[int]
) -> dict[str, ParameterMemory]:
    """``parameters``, whose places are operations, with phases as places."""

    def phase(operation: int) -> int:
        return int(np.searchsorted(begins, operation, side="right"))

    return {
        name: replace(
            each,
            unread_places=phase(each.unread_places) + 1,
            ready_place=phase(each.ready_place),
        )
        for name, each in parameters.items()
    }


def _parameter(tensor: Tensor) -> nn.Parameter:
    assert isinstance(tensor, nn.Parameter)
    return tensor
