"""Which parameters a module's forward needs, and in which order: recorded, not guessed.

A global forward pre-hook tells which modules are called. A parameter belongs to the modules that
own it; an owner that is never called itself (``MultiheadAttention.out_proj``, functional use) hands
its parameters to the nearest called module above it. A parameter that no called module covers is
an *orphan*: nothing shows when it is read, so ``step()`` waits for it.

What is known grows: a module called for the first time waits for everything below it, and from the
next ``step()`` on for its own share.

Threads: ``touch`` and ``needed`` run where the forward runs, ``settle`` in the thread that calls
``step()``. A forward in several threads at once (replicas) is allowed: the lock guards the list of
new modules. Modules are held weakly: recording keeps no model alive.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping

from torch import nn

from byteprophet.torch.slots import Slot


class ForwardOrder:
    """The forward pass as seen through module calls.

    ``slots``: by ``id`` of the parameter; the caller may add to it and then calls ``forget``.
    """

    def __init__(self, slots: Mapping[int, Slot]) -> None:
        self._slots = slots
        self._lock = threading.Lock()
        self._called: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._sequence: list[weakref.ref[nn.Module]] = []
        self._shares: weakref.WeakKeyDictionary[nn.Module, list[Slot]] = weakref.WeakKeyDictionary()
        self._settled = 0
        self.order: list[Slot] | None = None
        self.orphans: list[Slot] = []

    def forget(self) -> None:
        """Start anew: the set of parameters has changed."""
        with self._lock:
            self._called.clear()
            self._sequence.clear()
            self._settled = 0
        self._shares.clear()
        self.order = None
        self.orphans = []

    def touch(self, module: nn.Module) -> None:
        """``module`` is about to run its forward."""
        if module in self._called:
            return
        with self._lock:
            self._called.add(module)
            self._sequence.append(weakref.ref(module))

    def needed(self, module: nn.Module) -> Iterator[Slot]:
        """The parameters that must be up to date before ``module`` runs."""
        yield from self._own(module)
        share = self._shares.get(module)
        yield from self._below(module, set()) if share is None else share

    def settle(self) -> None:
        """Take in the modules called since the last time.

        Sets ``order``: all slots in the order of first need, orphans first because ``step()`` waits
        for them; ``None`` as long as no module that covers a parameter was called.
        """
        with self._lock:
            if len(self._sequence) == self._settled:
                return
            self._settled = len(self._sequence)
            modules = [module for ref in self._sequence if (module := ref()) is not None]
        called = set(modules)
        order: dict[Slot, None] = {}
        for module in modules:
            share = [*self._own(module), *self._below(module, called)]
            self._shares[module] = share
            order.update(dict.fromkeys(share))
        self.orphans = [slot for slot in self._slots.values() if slot not in order]
        self.order = [*self.orphans, *order] if order else None

    def _own(self, module: nn.Module) -> Iterator[Slot]:
        for parameter in module._parameters.values():
            slot = self._slots.get(id(parameter))
            if slot is not None:
                yield slot

    def _below(self, module: nn.Module, called: set[nn.Module]) -> Iterable[Slot]:
        """Parameters of the modules under ``module`` down to those that are ``called``."""
        found: dict[Slot, None] = {}
        visited = {module}
        pending = [*module.children()][::-1]
        while pending:
            child = pending.pop()
            if child in called or child in visited:
                continue
            visited.add(child)
            found.update(dict.fromkeys(self._own(child)))
            pending.extend([*child.children()][::-1])
        return found
