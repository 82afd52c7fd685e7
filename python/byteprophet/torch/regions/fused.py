"""Runs a region in place of the forward of its first module.

The forward of the other modules then returns its input, so whatever calls the modules one after
another goes on to work. Names, parameters and hooks stay as they are. A copy of a module, or one
that is pickled, has its own forward again.

A region is made for modules of which each takes what the one before returned. A forward pass in
which that is not so raises an error. Evaluation, and passes without gradients, run the modules one
by one. A region that torch cannot compile runs them one by one, too, and says why, once.

Threads: what a region hands on is kept per thread, because replicas of a model may run in several.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch.utils.checkpoint import checkpoint

from byteprophet.errors import one_line, warn
from byteprophet.job.strategy import Region

Forward = Callable[..., Any]


def region_function(forwards: Sequence[Forward], region: Region) -> Forward:
    """The function that runs ``forwards`` one after another, compiled or recomputed.

    It takes the inputs of the first. All others get the first one's output, and the same further
    inputs.
    """

    def chain(*inputs: Any, **named: Any) -> Any:
        output = forwards[0](*inputs, **named)
        for forward in forwards[1:]:
            output = forward(output, *inputs[1:], **named)
        return output

    run: Forward = chain
    if region.recomputed:

        def recomputed(*inputs: Any, **named: Any) -> Any:
            return checkpoint(chain, *inputs, use_reentrant=False, **named)

        run = recomputed
    if region.compiled:
        # torch counts compilations per code object, and all regions would share its limit.
        assert isinstance(run, types.FunctionType)
        run.__code__ = run.__code__.replace(co_name=f"region_{region.modules[0]}")
        run = torch.compile(run, fullgraph=True)
    return run


class RegionForward:
    """A region of a model. ``modules`` are those that ``region`` names, in its order."""

    def __init__(self, region: Region, modules: Sequence[nn.Module]) -> None:
        self._names = region.modules
        self._first_module = modules[0]
        self._forwards = tuple(module.forward for module in modules)
        self._run = region_function(self._forwards, region)
        self._compiled = region.compiled
        self._state = _State()
        for place, module in enumerate(modules):
            call = self._first if place == 0 else partial(self._next, place)
            module.forward = Replaced(module, call)

    def run_as(self, region: Region) -> None:
        """From the next pass on, run the same modules as ``region`` says."""
        self._run = region_function(self._forwards, region)
        self._compiled = region.compiled

    def end_pass(self) -> None:
        """Raise ``RuntimeError`` if a module that ran with the region was not called."""
        missed, self._state.place = self._state.place, 0
        self._state.inputs = ()
        if missed:
            raise RuntimeError(
                f"byteprophet: this forward pass ran {self._names[missed]!r} in a region with "
                f"{self._names[0]!r}, but never called it: remove the region from the strategy"
            )

    def _first(self, *inputs: Any, **named: Any) -> Any:
        state = self._state
        state.place = 0
        if not (self._first_module.training and torch.is_grad_enabled()):
            return self._forwards[0](*inputs, **named)
        output = self._run_or_stay_eager(inputs, named)
        if len(self._forwards) > 1:
            state.place = 1
            state.inputs = (output, *inputs[1:], named)
        return output

    def _next(self, place: int, *inputs: Any, **named: Any) -> Any:
        state = self._state
        if not state.place:
            return self._forwards[place](*inputs, **named)
        expected = state.inputs
        if place != state.place or not inputs or inputs[0] is not expected[0]:
            state.place = 0
            raise RuntimeError(
                f"byteprophet: {self._names[place]!r} ran in a region with {self._names[0]!r}, but "
                "its input is not what the module before it returned: remove the region from the "
                "strategy"
            )
        state.place = (place + 1) % len(self._forwards)
        if not state.place:
            state.inputs = ()
        return inputs[0]

    def _run_or_stay_eager(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        try:
            return self._run(*inputs, **named)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            if not self._compiled:
                raise
            self._compiled = False
            self._run = region_function(self._forwards, Region(self._names))
            reason = one_line(str(error).strip().partition("\n")[0])
            warn(f"the region of {', '.join(self._names)} is not compiled: {reason}")
            return self._run(*inputs, **named)


class _State(threading.local):
    """``place``: of the module that must be called next; 0: of none. ``inputs``: those it gets."""

    place = 0
    inputs: tuple[Any, ...] = ()


class Replaced:
    """Stands in the place of a module's forward. A copy of the module does not have it."""

    def __init__(self, module: nn.Module, call: Forward) -> None:
        self._module = module
        self._call = call

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run in place of the forward."""
        return self._call(*inputs, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._module, "forward")  # a copy of the module finds its class' own
