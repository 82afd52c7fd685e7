"""An optimizer's state of which each rank keeps the share of the elements that it updates.

What has a parameter's shape belongs to its elements and is kept as one range of them, in memory
order; counters and the like are whole on every rank. ``state_dict()`` gives the whole state, as an
optimizer of one process has it: to be called by all ranks, because each asks the others for their
shares. It may be loaded by any number of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from byteprophet.torch.dense import arranged, flat

if TYPE_CHECKING:
    from byteprophet.torch.gradients import Gradients
    from byteprophet.torch.slots import Slot

# Of torch.optim: one for all elements, which a parameter without dimensions does not show.
_COUNTERS = ("step", "eta", "mu", "mu_product")


@contextmanager
def whole(optimizer: Optimizer, gradients: Gradients) -> Iterator[None]:
    """Within it ``optimizer`` has the whole state. No update may be outstanding."""
    shared = optimizer.state
    complete: defaultdict[Any, Any] = defaultdict(dict)
    incomplete = []
    for key, state, slot, share in _entries(optimizer, gradients):
        if slot is None or share is None:
            complete[key] = state
            continue
        for name in sorted(state, key=str):
            value = state[name]
            if _is_range(name, value, share):
                mine, value = value, torch.empty_like(slot.parameter, dtype=value.dtype)
                flat(value)[share] = mine
                incomplete.append((slot, value.detach()))
            complete[key][name] = value
    gradients.complete(incomplete)
    optimizer.state = complete
    try:
        yield
    finally:
        optimizer.state = shared


def narrow(optimizer: Optimizer, gradients: Gradients) -> None:
    """Keep this rank's shares of a whole state."""
    for _, state, slot, share in _entries(optimizer, gradients):
        if slot is None or share is None:
            continue
        for name, value in state.items():
            shaped = isinstance(value, Tensor) and value.shape == slot.parameter.shape
            if shaped and name not in _COUNTERS:
                state[name] = flat(arranged(value, slot.parameter))[share].clone()


def adopt_saved(optimizer: Optimizer, gradients: Gradients) -> None:
    """Fit a state that this rank saved to the groups of now, which may be others.

    What is whole now and was shared then is asked of the other ranks, all of which call this.
    Before that, ``ValueError`` for what is neither whole nor this rank's share.
    """
    incomplete = []
    for _, state, slot, share in _entries(optimizer, gradients):
        if slot is None:
            continue
        parameter = slot.parameter
        own = share if share is not None else gradients.own_share(slot)
        known = [parameter.shape, *([] if own is None else [(own.stop - own.start,)])]
        for name in sorted(state, key=str):
            value = state[name]
            if not isinstance(value, Tensor) or not value.dim():  # counters
                continue
            if value.shape not in known:
                kept = " or ".join(str(tuple(shape)) for shape in known)
                raise ValueError(
                    f"load_sharded_state_dict(): {name!r} of '{slot.name}' is {tuple(value.shape)} "
                    f"where this rank keeps {kept}: it was saved by another rank, or in a job of "
                    "another size; use state_dict()"
                )
            # Of a single element the whole looks like the share of the rank that has it.
            if share is None and own is not None and (value.shape != known[0] or known[0] == (1,)):
                mine = value if value.shape == known[1] else value[own]
                incomplete.append((state, name, slot, own, mine))
    gathered = []
    for state, name, slot, own, mine in incomplete:
        state[name] = torch.empty_like(slot.parameter, dtype=mine.dtype)
        flat(state[name])[own] = mine
        gathered.append((slot, state[name].detach()))
    gradients.complete(gathered)
    narrow(optimizer, gradients)


def _entries(
    optimizer: Optimizer, gradients: Gradients
) -> Iterator[tuple[Any, Any, Slot | None, slice | None]]:
    """Key, state, whose it is if a parameter's, and of which elements; None: of all."""
    for key, state in optimizer.state.items():
        slot = gradients.slots.get(id(key))
        yield key, state, slot, None if slot is None else gradients.share(slot)


def _is_range(name: Any, value: Any, share: slice) -> bool:
    return (
        isinstance(value, Tensor)
        and name not in _COUNTERS
        and value.shape == (share.stop - share.start,)
    )
