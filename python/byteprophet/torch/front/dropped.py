"""Gradients in flight whose optimizer is gone.

A script may drop an optimizer while gradients travel: delayed averages that no step has used, or
gradients for which it never called ``step()``. They arrive when all ranks have sent theirs. Until
then, the callback of each transfer holds all slots of the optimizer, and so its parameters. How
long that takes differs between ranks. So whoever asks which tensors still exist waits here before.

Threads: finalizers of optimizers add, in any thread; only the training thread waits and removes. A
``deque`` allows both without a lock, which a finalizer could not take.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from byteprophet.tensor_names import gradient_name
from byteprophet.torch.front.flag import Flag
from byteprophet.torch.front.slots import Transfer
from byteprophet.torch.sync.synchroniser import Synchroniser


@dataclass(frozen=True)
class _InFlight:
    """``over``: set when the gradient has arrived, or nobody can receive it any more."""

    parameter: str
    over: Flag
    synchroniser: weakref.ref[Synchroniser]

    def awaited(self) -> str:
        """Whom the gradient seems to wait for."""
        synchroniser = self.synchroniser()
        name = gradient_name(self.parameter)
        who = "its job is over" if synchroniser is None else synchroniser.awaited(name)
        return f"the gradient of '{self.parameter}': {who}"


_in_flight: deque[_InFlight] = deque()


def note(transfers: Iterable[Transfer], synchroniser: Synchroniser) -> None:
    """Note that the optimizer of these submitted gradients is gone."""
    known = weakref.ref(synchroniser)
    for transfer in transfers:
        if not transfer.arrived.is_set():
            # It is freed before, e.g., if its fusion buffer is never sent.
            weakref.finalize(transfer, transfer.arrived.set).atexit = False
            _in_flight.append(_InFlight(transfer.slot.name, transfer.arrived, known))


def wait(timeout_s: float) -> str | None:
    """Wait until none is in flight. After ``timeout_s`` seconds, return whom one waits for."""
    deadline_s = time.monotonic() + timeout_s
    while _in_flight:
        first = _in_flight[0]
        if not first.over.wait(max(0.0, deadline_s - time.monotonic())):
            return first.awaited()
        _in_flight.popleft()
    return None


def forget() -> None:
    """Forget all, in a forked child, to which none arrives."""
    _in_flight.clear()
