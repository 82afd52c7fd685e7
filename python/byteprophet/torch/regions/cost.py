"""Measures what a region costs in each mode: forward, backward, and when gradients are ready.

The region runs alone, on copies of its modules, with inputs that a real forward pass gave it. The
modes run in turn, so that what the machine does meanwhile meets all of them, and the time is a low
quantile: what disturbs a run only makes it longer. With one thread the clock is the thread's
processor time, which stands still while others have the processor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

from byteprophet.errors import first_line
from byteprophet.job.region_costs import ModeCost
from byteprophet.job.strategy import BF16, COMPILED, RECOMPUTED, Region
from byteprophet.torch.regions.autocast import with_autocast
from byteprophet.torch.regions.buffers import ChangedBuffers
from byteprophet.torch.regions.calls import ModuleCall
from byteprophet.torch.regions.fused import Forward, region_function
from byteprophet.torch.regions.twice import (
    as_called,
    as_leaves,
    as_results,
    cannot_run_alone,
    copied,
)
from byteprophet.torch.tensors.nested import OPENED, hidden_in, tensors_in

_QUANTILE = 0.25
_LEAST_REPEATS = 5
_MOST_REPEATS = 40
_ENOUGH_NS = 600_000_000
"""Repeats end when a mode has run for so long."""


def measure_region(
    calls: Sequence[ModuleCall], modes: Sequence[str], not_twice: str = ""
) -> tuple[dict[str, ModeCost], dict[str, str]]:
    """What the modules of ``calls``, which follow each other, cost in ``modes``.

    The costs are by mode, with times for the modules' parameters in the order of
    ``region_parameters``. The second result says, by mode, why it cannot be used. ``not_twice``:
    why the modules cannot be recomputed, or "".
    """
    hidden = _hidden(calls)
    if hidden:
        return {}, dict.fromkeys(modes, hidden)
    running: list[_Running] = []
    refused: dict[str, str] = {}
    for mode in modes:
        if not_twice and RECOMPUTED in mode.split("-"):
            refused[mode] = not_twice
            continue
        try:
            running.append(_begun(mode, calls))
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            refused[mode] = first_line(error)
        except Exception as error:  # noqa: BLE001 - whatever the script's modules raise
            refused[mode] = cannot_run_alone(error)
    spent_ns = 0
    while running and (
        len(running[0].forward_ns) < _LEAST_REPEATS
        or (len(running[0].forward_ns) < _MOST_REPEATS and spent_ns < _ENOUGH_NS * len(running))
    ):
        for each in running:
            spent_ns += each.run()
    for each in running:
        each.end()
    return {each.mode: each.cost() for each in running}, refused


def _hidden(calls: Sequence[ModuleCall]) -> str:
    """Why a backward pass of ``calls`` alone would not be a job's; "" if it would."""
    first, last = calls[0], calls[-1]
    told = (("takes", (first.inputs, first.named_inputs)), ("returns", last.output))
    for verb, values in told:
        kind = hidden_in(values, lambda each: each.requires_grad)
        if kind:
            return f"it {verb} a {kind}, in which gradients are not followed: use {OPENED}"
    return ""


def region_parameters(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    """The parameters of ``modules`` that have gradients, each once."""
    found = {
        id(parameter): parameter
        for module in modules
        for parameter in module.parameters()
        if parameter.requires_grad
    }
    return list(found.values())


@dataclass
class _Running:
    """A region in one mode, and what it took so far."""

    mode: str
    calls: Sequence[ModuleCall]
    forward_ns: list[int] = field(default_factory=list)
    backward_ns: list[int] = field(default_factory=list)
    ready_ns: list[list[int]] = field(default_factory=list)
    compile_ns: int = 0

    def __post_init__(self) -> None:
        modules = copied([call.module for call in self.calls])
        self._parameters = region_parameters(modules)
        words = self.mode.split("-")
        paths = tuple(call.path for call in self.calls)
        region = Region(paths, COMPILED in words, RECOMPUTED in words)
        run = region_function(
            [module.forward for module in modules], region, ChangedBuffers(modules)
        )
        self._run: Forward = as_called(modules, run)
        if BF16 in words:
            self._run = with_autocast(self._run, modules)
        self._given = as_leaves((self.calls[0].inputs, self.calls[0].named_inputs))
        self._clock = time.thread_time_ns if torch.get_num_threads() == 1 else time.monotonic_ns
        self._times_ns = [0] * len(self._parameters)
        self._hooks = []
        for number, parameter in enumerate(self._parameters):
            hooked: Any = parameter
            hook = hooked.register_post_accumulate_grad_hook(partial(self._note, number))
            self._hooks.append(hook)

    def end(self) -> None:
        """Remove the hooks, through which the region would keep itself alive."""
        for hook in self._hooks:
            hook.remove()

    def run_first(self) -> None:
        """Compile, if the region is compiled."""
        began_ns = time.monotonic_ns()
        self.run()
        if COMPILED in self.mode.split("-"):
            self.compile_ns = time.monotonic_ns() - began_ns
        for times in (self.forward_ns, self.backward_ns, self.ready_ns):
            times.clear()

    def run(self) -> int:
        """One forward and backward pass; returns what they took in all."""
        for tensor in (*self._parameters, *tensors_in(self._given)):
            tensor.grad = None
        inputs, named = as_results(self._given)
        began_ns = self._clock()
        output = self._run(*inputs, **named)
        forward_ns = self._clock() - began_ns
        outputs = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
        gradients = [torch.ones_like(tensor) for tensor in outputs]
        self._began_ns = self._clock()
        if outputs:
            torch.autograd.backward(outputs, gradients)
        backward_ns = self._clock() - self._began_ns
        self.forward_ns.append(forward_ns)
        self.backward_ns.append(backward_ns)
        self.ready_ns.append(list(self._times_ns))
        return forward_ns + backward_ns

    def cost(self) -> ModeCost:
        ready_ns = np.quantile(np.array(self.ready_ns), _QUANTILE, axis=0)
        backward_ns = _low(self.backward_ns)
        return ModeCost(
            _low(self.forward_ns),
            backward_ns,
            tuple(min(backward_ns, int(each)) for each in ready_ns),
            self.compile_ns,
        )

    def _note(self, number: int, _parameter: Tensor) -> None:
        self._times_ns[number] = self._clock() - self._began_ns


def _begun(mode: str, calls: Sequence[ModuleCall]) -> _Running:
    """A region that has run once."""
    made = _Running(mode, calls)
    try:
        made.run_first()
    except BaseException:
        made.end()
        raise
    return made


def _low(times_ns: Sequence[int]) -> int:
    return int(np.quantile(times_ns, _QUANTILE))
