"""Measures forward passes for the profiler, and costs nothing while it does not.

Module hooks cut the forward pass where modules begin and end. The time of a piece goes to the
tensor needed latest in forward order so far: that one had to be there before, the next had not.
Time spent waiting for updates is known from the updaters and left out; so is time outside any
module (the script's own) and what is run again inside backward (checkpointing).

Threads: hooks and ``begin_iteration`` run in the thread that trains (``begin_iteration`` also in
autograd's, while that one waits); ``want`` and ``taken`` anywhere. Hooks are installed and removed
only by ``begin_iteration``, when no forward runs. Forwards in other threads are not measured.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils.hooks import RemovableHandle

from byteprophet.profile.estimate import Forward
from byteprophet.torch import flush_points

_KEPT = 64  # forward passes that nobody takes are forgotten


class Stopwatch:
    """One per process; ``byteprophet.profile.profiler.Stopwatch``."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._wanted = False
        self._handles: list[RemovableHandle] = []
        self._passes: deque[Forward] = deque(maxlen=_KEPT)
        self._thread = 0
        self._restart()

    def want(self, on: bool) -> None:
        """Measure from the next iteration on, or no longer."""
        self._wanted = on

    def taken(self) -> Sequence[Forward]:
        """The forward passes measured since the last call."""
        return [self._passes.popleft() for _ in range(len(self._passes))]

    def begin_iteration(self, iteration: int) -> None:
        """The first gradient of ``iteration`` is there: its forward is over."""
        if self._handles:
            if self._times_ns:
                times = dict(self._times_ns)
                self._passes.append(Forward(iteration, self._ended_ns, times, self._batch_size))
            self._restart()
        if self._wanted and not self._handles:
            self._handles = [
                hooks.register_module_forward_pre_hook(self._before),
                hooks.register_module_forward_hook(self._after),
            ]
        elif not self._wanted and self._handles:
            for handle in self._handles:
                handle.remove()
            self._handles = []

    def _restart(self) -> None:
        self._times_ns: dict[int, int] = {}  # by forward position
        self._position = 0
        self._depth = 0
        self._since_ns = self._ended_ns = self._waited_ns = 0
        self._batch_size: int | None = None

    def _before(self, module: nn.Module, inputs: Any) -> None:
        if not self._is_forward():
            return
        if self._depth == 0:
            if not self._times_ns:
                self._thread = threading.get_ident()
                self._batch_size = _batch_size(inputs)
            self._since_ns, self._waited_ns = self._clock(), _waited_ns()
        else:
            self._cut()
        self._depth += 1
        for front in flush_points.live_fronts():
            for slot in front.needed(module):
                self._position = max(self._position, -1 - slot.priority)

    def _after(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._depth and self._is_forward():
            self._cut()
            self._depth -= 1
            self._ended_ns = self._since_ns

    def _cut(self) -> None:
        now_ns, waited_ns = self._clock(), _waited_ns()
        took_ns = max(0, now_ns - self._since_ns - (waited_ns - self._waited_ns))
        self._times_ns[self._position] = self._times_ns.get(self._position, 0) + took_ns
        self._since_ns, self._waited_ns = now_ns, waited_ns

    def _is_forward(self) -> bool:
        return is_training_forward() and (not self._depth or self._thread == threading.get_ident())


def is_training_forward() -> bool:
    """Whether what runs here is recorded for a backward pass and not part of one."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    return not in_backward()


def in_backward() -> bool:
    """Whether this thread is in a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


def _waited_ns() -> int:
    return sum(front.updater.waited_ns for front in flush_points.live_fronts())


def _batch_size(inputs: Any) -> int | None:
    """The first dimension of the first tensor."""
    tensors = (x for x in inputs if isinstance(x, Tensor) and x.dim() > 0)
    first = next(tensors, None)
    return first.shape[0] if first is not None and first.shape[0] > 0 else None


process_stopwatch = Stopwatch()
