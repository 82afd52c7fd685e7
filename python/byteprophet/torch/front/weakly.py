"""Callbacks for torch that keep neither our objects nor their slots alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from byteprophet.torch.front.slots import Slot
from byteprophet.torch.tensors.compiling import stays_eager


def weakly(method: Callable[[Slot], None], slot: Slot) -> Callable[..., None]:
    """Make a callback that calls the bound ``method`` with ``slot`` and ignores its arguments.

    It holds both weakly, and does nothing once the object or the slot is gone.
    """
    bound, held = weakref.WeakMethod(method), weakref.ref(slot)

    @stays_eager  # called by a backward pass within a compiled function
    def call(*_: Any) -> None:
        alive, its_slot = bound(), held()
        if alive is not None and its_slot is not None:
            alive(its_slot)

    return call
