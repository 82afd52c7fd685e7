"""Measures forward passes for the profiler, and costs nothing while it is off.

Module hooks divide the forward pass where modules begin and end. The time of a piece is attributed
to the latest tensor in forward order that was needed so far, because the piece could not run
without it. Each front has an order of its own, so times are kept for each one, and for all of them
as if they were one. Three kinds of time are excluded: waits for updates, which the updaters report,
time outside of modules (the script's own), and code that runs again inside backward
(checkpointing).

Threads: modules are called in the training thread. ``begin_iteration`` runs there and in autograd's
threads, while the training thread waits. ``set_enabled`` and ``drain`` may run in any thread.
Listening begins and ends only in ``begin_iteration``, when no forward runs. Forwards in other
threads are not measured.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from byteprophet.profile.estimate import Forward
from byteprophet.torch.live_fronts import live_fronts
from byteprophet.torch.tensors import module_calls
from byteprophet.torch.tensors.backward import in_backward

_KEPT = 64  # forward passes kept until ``drain`` is called; older ones are dropped


class Stopwatch:
    """Implements ``byteprophet.profile.profiler.Stopwatch``. There is one per process."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._enabled: set[int | None] = set()  # by serial number of the front; None: all fronts
        self._end_listening: Callable[[], None] | None = None
        self._passes: defaultdict[int | None, deque[Forward]] = defaultdict(
            lambda: deque(maxlen=_KEPT)
        )
        self._thread = 0
        self._restart()

    @property
    def runs(self) -> bool:
        """Whether the next forward pass is measured."""
        return self._end_listening is not None

    def set_enabled(self, on: bool, serial: int | None = None) -> None:
        """Start (``on``) or stop measuring, from the next iteration on.

        ``serial``: for this front only.
        """
        if on:
            self._enabled.add(serial)
        else:
            self._enabled.discard(serial)

    def drain(self, serial: int | None = None) -> Sequence[Forward]:
        """Return the forward passes measured since the last call, and drop them.

        ``serial``: with the times and positions of this front only.
        """
        passes = self._passes[serial]
        return [passes.popleft() for _ in range(len(passes))]

    def begin_iteration(self, iteration: int) -> None:
        """Note the first gradient of ``iteration``, which shows that its forward is over."""
        if self._end_listening is not None:
            for serial, times_ns in self._times_ns.items():
                found = Forward(iteration, self._ended_ns, times_ns, self._batch_size)
                self._passes[serial].append(found)
            self._restart()
        if self._enabled and self._end_listening is None:
            self._end_listening = module_calls.listen(self._before, self._after, last=True)
        elif not self._enabled and self._end_listening is not None:
            self._end_listening()
            self._end_listening = None

    def _restart(self) -> None:
        self._times_ns: dict[int | None, dict[int, int]] = {}  # by front and forward position
        self._position: dict[int | None, int] = {None: 0}  # the latest one, by front
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
        for front in live_fronts():
            before = self._position.get(front.serial, 0)
            self._position[front.serial] = max((before, *front.needed_positions(module)))
        self._position[None] = max(self._position.values())

    def _after(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._depth and self._is_forward():
            self._cut()
            self._depth -= 1
            self._ended_ns = self._since_ns

    def _cut(self) -> None:
        now_ns, waited_ns = self._clock(), _waited_ns()
        took_ns = max(0, now_ns - self._since_ns - (waited_ns - self._waited_ns))
        for serial, position in self._position.items():
            times_ns = self._times_ns.setdefault(serial, {})
            times_ns[position] = times_ns.get(position, 0) + took_ns
        self._since_ns, self._waited_ns = now_ns, waited_ns

    def _is_forward(self) -> bool:
        return is_training_forward() and (not self._depth or self._thread == threading.get_ident())


def is_training_forward() -> bool:
    """Whether this runs with gradients enabled and outside of backward and of compilation."""
    if torch.compiler.is_dynamo_compiling() or not torch.is_grad_enabled():
        return False
    return not in_backward()


def _waited_ns() -> int:
    return sum(front.waited_ns for front in live_fronts())


def _batch_size(inputs: Any) -> int | None:
    """The size of the first dimension of the first tensor among ``inputs``, if positive."""
    tensors = (x for x in inputs if isinstance(x, Tensor) and x.dim() > 0)
    first = next(tensors, None)
    return first.shape[0] if first is not None and first.shape[0] > 0 else None


process_stopwatch = Stopwatch()
