"""Runs a region in place of the forward of its first module.

All modules but the last then return a stand-in, which only the next one may take, and the last one
returns the region's output, so whatever calls the modules one after another goes on to work. Names,
parameters and hooks stay as they are. A copy of a module, or one that is pickled, has its own
forward again.

A region is made for modules of which each takes what the one before returned, which nobody else
uses. A forward pass in which that is not so raises an error. Evaluation, and passes without
gradients, run the modules one by one. A region that torch cannot compile runs them one by one, too,
and says why, once.

Within a DistributedDataParallel's forward pass, torch cuts what it compiles at the ends of buckets
(``optimize_ddp``). A region is measured and replayed as one graph, so it is hidden from that.

Threads: what a region hands on is kept per thread, because replicas of a model may run in several.
DistributedDataParallel notes its forward pass for the whole process, and so do we.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree
from torch.utils.checkpoint import checkpoint

from byteprophet.errors import first_line, warn
from byteprophet.job.strategy import Region
from byteprophet.torch.regions.buffers import ChangedBuffers
from byteprophet.torch.regions.calls import same, versions_of

Forward = Callable[..., Any]
_KINDS = ("cpu", "cuda")


def region_function(
    forwards: Sequence[Forward], region: Region, buffers: ChangedBuffers
) -> Forward:
    """The function that runs ``forwards`` one after another, compiled or recomputed.

    It takes the inputs of the first. Each of the others gets what the one before returned, and the
    same further inputs. ``buffers``: of the modules.
    """

    def chain(*inputs: Any, **named: Any) -> Any:
        output = forwards[0](*inputs, **named)
        for forward in forwards[1:]:
            output = forward(output, *inputs[1:], **named)
        return output

    run: Forward = chain
    if region.recomputed:
        # Compiled code writes buffers in the forward pass only.
        contexts: dict[str, Any] = {} if region.compiled else {"context_fn": buffers.contexts}

        def recomputed(*inputs: Any, **named: Any) -> Any:
            # Not as keywords of ``checkpoint``, which has some of its own.
            return checkpoint(partial(chain, **named), *inputs, use_reentrant=False, **contexts)

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
        self._buffers = ChangedBuffers(modules)
        self._state = _State()
        self.run_as(region)
        for place, module in enumerate(modules):
            call = self._first if place == 0 else partial(self._next, place)
            module.forward = Replaced(module, call)

    def run_as(self, region: Region) -> None:
        """From the next pass on, run the same modules as ``region`` says."""
        self._run = region_function(self._forwards, region, self._buffers)
        self._compiled, self._recomputed = region.compiled, region.recomputed

    def end_pass(self) -> None:
        """Raise ``RuntimeError`` if a module that ran with the region was not called."""
        missed = self._state.place
        self._state.end()
        if missed:
            raise RuntimeError(
                f"byteprophet: this forward pass ran {self._names[missed]!r} in a region with "
                f"{self._names[0]!r}, but never called it: remove the region from the strategy"
            )

    def _first(self, *inputs: Any, **named: Any) -> Any:
        state = self._state
        state.end()
        if not (self._first_module.training and torch.is_grad_enabled()):
            return self._forwards[0](*inputs, **named)
        output = self._run_or_stay_eager(inputs, named)
        if len(self._forwards) == 1:
            return output
        state.begin(output, (inputs[1:], named), _StandIn.of(self._names[0]))
        return state.stand_in

    def _next(self, place: int, *inputs: Any, **named: Any) -> Any:
        state = self._state
        if not state.place:
            return self._forwards[place](*inputs, **named)
        takes_it = place == state.place and bool(inputs) and inputs[0] is state.stand_in
        why = ""
        if not takes_it:
            why = "its input is not what the module before it returned"
        elif not same(state.further, (inputs[1:], named)):
            why = "its further inputs differ"
        elif state.versions != versions_of(state.further):
            why = "its further inputs were changed in place before it"
        elif state.modes != _modes():
            why = "gradients or autocast are switched otherwise around it"
        if why:
            state.end()
            raise RuntimeError(
                f"byteprophet: {self._names[place]!r} ran in a region with {self._names[0]!r}, but "
                f"{why}: remove the region from the strategy"
            )
        if place + 1 < len(self._forwards):
            state.place = place + 1
            return state.stand_in
        output = state.output
        state.end()
        return output

    def _run_or_stay_eager(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if not self._compiled:
            return self._run(*inputs, **named)
        try:
            with _uncut():
                return self._run(*inputs, **named)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            self._compiled = False
            eager = Region(self._names, recomputed=self._recomputed)
            self._run = region_function(self._forwards, eager, self._buffers)
            reason = first_line(error)
            warn(f"the region of {', '.join(self._names)} is not compiled: {reason}")
            return self._run(*inputs, **named)


@contextmanager
def _uncut() -> Iterator[None]:
    """Within this context, torch compiles as if no DistributedDataParallel ran forward."""
    within = DistributedDataParallel._active_ddp_module
    DistributedDataParallel._active_ddp_module = None
    try:
        yield
    finally:
        DistributedDataParallel._active_ddp_module = within


class _State(threading.local):
    """``place``: of the module that must be called next; 0: of none.

    ``output``: what the last module will return. ``further``: the inputs that all modules get, and
    ``versions`` of them. ``stand_in``: what the others return in this pass. ``modes``: ``_modes``
    of the first call.
    """

    place = 0
    output: Any = None
    further: tuple[Any, ...] = ()
    versions: tuple[int, ...] = ()
    stand_in: _StandIn | None = None
    modes: tuple[object, ...] = ()

    def begin(self, output: Any, further: tuple[Any, ...], stand_in: _StandIn) -> None:
        self.place, self.output, self.further = 1, output, further
        self.versions = versions_of(further)
        self.stand_in, self.modes = stand_in, _modes()

    def end(self) -> None:
        self.place, self.output, self.further, self.versions = 0, None, (), ()
        self.stand_in, self.modes = None, ()


def _modes() -> tuple[object, ...]:
    """Whether gradients are on, and autocast with its type, on each kind of device."""
    casts = ((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _KINDS)
    return (torch.is_grad_enabled(), *casts)


class _StandIn(Tensor):
    """What a module returns that is not the last of its region. Only the next one may take it."""

    module: str

    @classmethod
    def of(cls, module: str) -> _StandIn:
        """One for the region that begins with ``module``."""
        made: _StandIn = Tensor._make_subclass(cls, torch.empty(0))
        made.module = module
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Raise ``RuntimeError``: somebody computes with it, or reads an attribute."""
        leaves = _pytree.tree_leaves((args, kwargs))
        region = next(each.module for each in leaves if isinstance(each, _StandIn))
        raise RuntimeError(
            f"byteprophet: a module in a region with {region!r} is not the last of it, but not only"
            " the next module uses what it returns: remove the region from the strategy"
        )


class Replaced:
    """Stands in the place of a module's forward, with its signature.

    A copy of the module does not have it.
    """

    def __init__(self, module: nn.Module, call: Forward) -> None:
        self._module = module
        self._call = call
        self.__wrapped__ = module.forward  # whose signature ``inspect`` shows

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run in place of the forward."""
        return self._call(*inputs, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._module, "forward")  # a copy of the module finds its class' own
