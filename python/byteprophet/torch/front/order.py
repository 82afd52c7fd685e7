"""Records the parameters that each module's forward needs, and their order.

A global forward pre-hook shows which modules are called. A parameter belongs to the modules that
own it. If an owner is never called itself (``MultiheadAttention.out_proj``, functional use), its
parameters belong to the nearest called module above it. A parameter that belongs to no called
module is an *orphan*: nothing shows when it is read, so ``step()`` waits for it.

The first module of a region runs the others of it, too (``torch/regions``), so it needs theirs.

A module that is called for the first time waits for all parameters below it. From the next
``step()`` on, it waits only for the parameters that belong to it.

A script may make modules in every iteration, such as ``nn.CrossEntropyLoss()(output, target)``. So
only modules that need parameters are recorded, and they are forgotten once they are gone.

Threads: ``touch`` and ``needed`` run in the thread of the forward pass, ``settle`` in the thread
that calls ``step()``. Several threads may run a forward at once (replicas): the lock guards the
list of new modules. Modules are referred to weakly, so recording keeps no model alive.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping

from torch import nn

from byteprophet.torch.front.slots import Slot
from byteprophet.torch.tensors import module_calls


class ForwardOrder:
    """The forward order of parameters, as module calls show it.

    ``slots`` holds the parameters by ``id``. The caller may change it, and must then call
    ``forget``.
    """

    def __init__(self, slots: Mapping[int, Slot]) -> None:
        self._slots = slots
        self._lock = threading.Lock()
        self._called: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._compiled: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._sequence: list[weakref.ref[nn.Module]] = []
        self._shares: weakref.WeakKeyDictionary[nn.Module, list[Slot]] = weakref.WeakKeyDictionary()
        self._without: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # called, need no parameter
        self._settled = 0
        self.order: list[Slot] | None = None
        self.orphans: list[Slot] = []

    def forget(self) -> None:
        """Discard what was recorded, because the set of parameters has changed."""
        with self._lock:
            self._called.clear()
            self._sequence.clear()
            self._settled = 0
        self._shares.clear()
        self._without.clear()
        self.order = None
        self.orphans = []

    def knows(self, module: nn.Module) -> bool:
        """Whether ``module`` was called before."""
        return module in self._called

    def touch(self, module: nn.Module) -> None:
        """Note that ``module`` is about to run its forward."""
        if module in self._called:
            if module._compiled_call_impl is None or module in self._compiled:
                return
            # It has been compiled in place since its first call.
            self._shares.pop(module, None)
            self._without.discard(module)
        needs_any = next(self._share(module, set()), None) is not None
        with self._lock:
            self._called.add(module)
            if module_calls.is_compiled(module):
                self._compiled.add(module)
            if needs_any:
                self._sequence.append(weakref.ref(module))
            else:
                self._without.add(module)

    def needed(self, module: nn.Module) -> Iterator[Slot]:
        """The parameters that must be up to date before ``module`` runs."""
        yield from self._own(module)
        if module in self._without:
            return
        share = self._shares.get(module)
        yield from self._share(module, set()) if share is None else share

    def everything(self, module: nn.Module) -> Iterator[Slot]:
        """All parameters of ``module`` and of the modules below it, called or not."""
        return self._own(module) if module in self._without else self._share(module, set())

    def settle(self) -> None:
        """Add the modules that were called since the last ``settle``, and update ``order``.

        ``order`` holds all slots in the order in which they are first needed. Orphans come first,
        because ``step()`` waits for them. It is None until a module that covers a parameter is
        called.
        """
        with self._lock:
            if len(self._sequence) == self._settled:
                return
            modules = [module for ref in self._sequence if (module := ref()) is not None]
            self._sequence = [weakref.ref(module) for module in modules]
            self._settled = len(self._sequence)
        called = set(modules)
        order: dict[Slot, None] = {}
        for module in modules:
            # Calls within compiled code are not seen, even if the module was called before.
            seen = set() if module in self._compiled else called
            share = [*self._share(module, seen)]
            self._shares[module] = share
            order.update(dict.fromkeys(share))
        self.orphans = [slot for slot in self._slots.values() if slot not in order]
        self.order = [*self.orphans, *order] if order else None

    def _share(self, module: nn.Module, called: set[nn.Module]) -> Iterator[Slot]:
        for each in (module, *module_calls.run_with(module)):
            yield from self._own(each)
            yield from self._below(each, called)

    def _own(self, module: nn.Module) -> Iterator[Slot]:
        for parameter in module._parameters.values():
            slot = self._slots.get(id(parameter))
            if slot is not None:
                yield slot

    def _below(self, module: nn.Module, called: set[nn.Module]) -> Iterable[Slot]:
        """Parameters of the modules below ``module``, except ``called`` ones and those below."""
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
