"""Sharded optimizer state: each rank keeps the state of the elements that it updates.

A state tensor with the shape of its parameter is sharded like the parameter: a rank keeps one range
of its elements in memory order. Every rank keeps counters and similar values in full.
``state_dict()`` returns the full state, like the optimizer of a single process. All ranks must call
it, because each one gathers the shards of the others. Any number of ranks can load the result.
A state of shards names the weights of their owners, so that ranks with other weights can load it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from byteprophet.errors import UserError
from byteprophet.job.owners import Owners
from byteprophet.torch.front.gradients import Gradients
from byteprophet.torch.front.slots import Slot
from byteprophet.torch.sync import saver
from byteprophet.torch.sync.completion import STATE_DICT, Call
from byteprophet.torch.sync.synchroniser import Synchroniser
from byteprophet.torch.tensors.dense import arranged, flat

OWNERS = "byteprophet_owners"
"""The key of ``sharded_state_dict()`` under which the owners' weights are, if they are unequal."""

_LOAD = Call("called load_sharded_state_dict()", "state")
# State of torch.optim's classes that has one value for all elements. The shape does not tell it
# apart if the parameter is a scalar.
_COUNTERS = ("step", "eta", "mu", "mu_product")


@contextmanager
def whole(optimizer: Optimizer, gradients: Gradients, call: Call = STATE_DICT) -> Iterator[None]:
    """Within this context, ``optimizer`` has the whole state. No update may be outstanding.

    ``call`` names the script's call, for error messages.
    """
    shared = optimizer.state
    complete: defaultdict[Any, Any] = defaultdict(dict)
    incomplete = []
    for key, state, slot, shard in _entries(optimizer, gradients):
        if slot is None or shard is None:
            complete[key] = state
            continue
        for name in sorted(state, key=str):
            value = state[name]
            if _is_range(name, value, shard):
                mine, value = value, torch.empty_like(slot.parameter, dtype=value.dtype)
                flat(value)[shard] = mine
                incomplete.append((slot, value.detach()))
            complete[key][name] = value
    gradients.unshard(incomplete, call)
    optimizer.state = complete
    try:
        yield
    finally:
        optimizer.state = shared


def refuse_rearranged(optimizer: Optimizer, gradients: Gradients) -> None:
    """Raise ``UserError`` if a parameter whose state is sharded has other strides than before."""
    for slot in gradients.slots.values():
        strides = slot.parameter.stride()
        known, slot.strides = slot.strides, strides
        changed = known not in (None, strides) and gradients.shard(slot) is not None
        if changed and optimizer.state.get(slot.parameter):
            slot.strides = known
            raise UserError(
                f"parameter '{slot.name}' has another memory format than in the step before, and "
                "ranks keep shards of its state in memory order: change the format before the "
                "first step, or use sync='allreduce'"
            )


def narrow(optimizer: Optimizer, gradients: Gradients) -> None:
    """Reduce a whole state to this rank's shards."""
    for _, state, slot, shard in _entries(optimizer, gradients):
        if slot is None or shard is None:
            continue
        for name, value in state.items():
            shaped = isinstance(value, Tensor) and value.shape == slot.parameter.shape
            if shaped and name not in _COUNTERS:
                state[name] = flat(arranged(value, slot.parameter))[shard].clone()


def add_own(state_dict: dict[str, Any], gradients: Gradients) -> None:
    """Add what tells whose shards a state has, if there may be shards."""
    owners = gradients.owners
    if owners is None:
        return
    state_dict[saver.KEY] = saver.named(gradients.rank, len(owners.weights))
    if owners.unequal:
        state_dict[OWNERS] = list(owners.unequal)


def refuse_other(state_dict: Mapping[str, Any], synchroniser: Synchroniser) -> None:
    """Raise ``ValueError`` if another rank has saved this state, or a job of another size.

    Also raises it if the state may have shards, and nothing is ever sharded here.
    """
    rank, ranks = synchroniser.rank, synchroniser.size
    saver.refuse_other(state_dict.get(saver.KEY, {}), rank, ranks, "load_sharded_state_dict()")
    if saver.KEY in state_dict and not synchroniser.shards:
        raise ValueError(
            "load_sharded_state_dict(): it has this rank's shards, and here every rank has the "
            "whole state: use state_dict()"
        )


def adopt_saved(optimizer: Optimizer, gradients: Gradients, weights: Sequence[int]) -> None:
    """Reshard a state that this rank saved to the current buckets and owners, which may differ.

    ``weights``: the owners' when it was saved; none: equal ones. All ranks must call this: it
    gathers tensors that were sharded and are not sharded in the same way now. Before that, it
    raises ``ValueError`` if a tensor is neither whole nor this rank's shard.
    """
    saved = _saved_owners(gradients, weights)
    if saved is None:
        return
    incomplete = []
    for _, state, slot, shard in _entries(optimizer, gradients):
        if slot is None:
            continue
        parameter = slot.parameter
        elements = parameter.numel()
        if not elements:
            continue
        own = saved.shard(elements, gradients.rank)
        known = [parameter.shape, (own.stop - own.start,)]
        # One rank may own all elements. Its shard has the shape of the whole if that is flat.
        alike = parameter.dim() == 1 and elements in saved.sizes(elements)
        stays = shard is not None and saved == gradients.owners
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
            if not stays and (value.shape != known[0] or alike):
                mine = value if value.shape == known[1] else value[own]
                incomplete.append((state, name, slot, own, mine))
    gathered = []
    for state, name, slot, own, mine in incomplete:
        state[name] = torch.empty_like(slot.parameter, dtype=mine.dtype)
        flat(state[name])[own] = mine
        gathered.append((slot, state[name].detach()))
    gradients.unshard(gathered, _LOAD, saved)
    narrow(optimizer, gradients)


def _saved_owners(gradients: Gradients, weights: Sequence[int]) -> Owners | None:
    """The owners of saved shards; None if no bucket is ever sharded."""
    now = gradients.owners
    if now is None:
        return None
    try:
        return Owners.of(weights, len(now.weights))
    except UserError as error:
        raise ValueError(
            f"load_sharded_state_dict(): {error}: it was saved in a job of another size; use "
            "state_dict()"
        ) from None


def _entries(
    optimizer: Optimizer, gradients: Gradients
) -> Iterator[tuple[Any, Any, Slot | None, slice | None]]:
    """Yields key, state, slot and shard of each entry of the state.

    The slot is None if the key is not a parameter. The shard is None if all elements are kept.
    """
    for key, state in optimizer.state.items():
        slot = gradients.slots.get(id(key))
        yield key, state, slot, None if slot is None else gradients.shard(slot)


def _is_range(name: Any, value: Any, shard: slice) -> bool:
    return (
        isinstance(value, Tensor)
        and name not in _COUNTERS
        and value.shape == (shard.stop - shard.start,)
    )
