"""The state of compression in a saved optimizer state, under a key of its own.

``state_dict()`` has all ranks' errors, so all ranks must call it. Any number of ranks can load it:
each takes its own error, or the mean of all if their number differs. A job of one rank compresses
nothing, so it drops them and warns. ``sharded_state_dict()`` has this rank's error, which only this
rank can load, in a job of the same size.

Both have, by the name of the parameter, how many gradients were averaged, on which random numbers
depend, and what the compressor keeps itself. Optimizers of other kinds ignore the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from byteprophet.errors import warn
from byteprophet.tensor_names import gradient_name
from byteprophet.torch.front.front import Front
from byteprophet.torch.sync import agreement, saver
from byteprophet.torch.sync.completion import STATE_DICT, Call
from byteprophet.torch.sync.compression_state import CompressionState, Kept

KEY = "byteprophet_compression"

_LOAD = Call("called load_state_dict()", "state")
_LOAD_SHARDED = Call("called load_sharded_state_dict()", "state")

Adopt = Callable[[], None]


def refuse_unused(front: Front, call: str) -> None:
    """Raise ``RuntimeError`` if errors are those of gradients that no update has used.

    Such a state would have what was not sent of a gradient, and not what was. Delayed averages of
    earlier steps are saved with the state, so these are only waited for.
    """
    state = front.synchroniser.compression
    if state is None:
        return
    for slot in front.gradients.slots.values():
        if slot.name in state.of and (slot.unclaimed or slot.averaged or slot.submitted):
            raise RuntimeError(
                f"byteprophet: {call} between backward() and step(): the gradient of "
                f"'{slot.name}' is compressed, and no update has used it yet: call it after step()"
            )
    front.gradients.delays.wait()  # an error is known once its average has ended


def add_whole(state_dict: dict[str, Any], front: Front) -> None:
    """Add the state of compression with all ranks' errors, if gradients are compressed.

    All ranks must call this.
    """
    state = front.synchroniser.compression
    if state is None:
        return
    saved = {name: _common(kept) for name, kept in state.of.items()}
    for name, (errors, completion) in state.all_errors(STATE_DICT).items():
        completion.wait(front.timeout_s, front.synchroniser, gradient_name(name))
        saved[name]["errors"] = errors
    state_dict[KEY] = {"ranks": state.ranks, "parameters": saved}


def add_own(state_dict: dict[str, Any], front: Front) -> None:
    """Add the state of compression with this rank's errors, if gradients are compressed."""
    state = front.synchroniser.compression
    if state is None:
        return
    saved = {name: _common(kept) for name, kept in state.of.items()}
    for name, kept in state.of.items():
        if kept.compressor.error_feedback:
            saved[name]["error"] = state.own_error(name)
    own = saver.named(state.rank, state.ranks)
    state_dict[KEY] = {**own, "parameters": saved}


def read_whole(state_dict: Mapping[str, Any], front: Front) -> Adopt:
    """What ``add_whole`` has added, ready to be adopted. All ranks must call this.

    Raises ``ValueError`` if it is of another model, or if ranks load different steps.
    """
    return _read(state_dict, front, _LOAD)


def read_own(state_dict: Mapping[str, Any], front: Front) -> Adopt:
    """What ``add_own`` has added, ready to be adopted. All ranks must call this.

    Raises ``ValueError`` if another rank has saved it, or if a job of another size has; and as
    ``read_whole`` does.
    """
    return _read(state_dict, front, _LOAD_SHARDED)


def _read(state_dict: Mapping[str, Any], front: Front, call: Call) -> Adopt:
    state, saved = front.synchroniser.compression, state_dict.get(KEY)
    if state is None:
        if saved is not None:
            warn(
                "a state is loaded that was saved where gradients were compressed, and here they "
                "are not: what was not sent of them is dropped"
            )
        return _nothing
    what = call.done.removeprefix("called ")
    parameters = {} if saved is None else saved["parameters"]
    if saved is not None and "rank" in saved:
        saver.refuse_other(saved, state.rank, state.ranks, what)
    dropped = [name for name in parameters if name not in state.of]
    if dropped:
        warn(f"{what}: '{dropped[0]}' is not compressed here: what was not sent of it is dropped")
    found = {name: Kept(kept.compressor, kept.shape) for name, kept in state.of.items()}
    for name, fresh in found.items():
        if name in parameters:
            _restore(fresh, parameters[name], state, name, what)
    _compare_steps(front, found, call, what)

    def adopt() -> None:
        state.of.update(found)

    return adopt


def _nothing() -> None:
    """Adopt nothing."""


def _common(kept: Kept) -> dict[str, Any]:
    """What is the same on all ranks."""
    common = {name: value.clone() for name, value in kept.common.items()}
    return {"compressor": kept.compressor.type, "steps": kept.steps, "common": common}


def _restore(
    fresh: Kept, saved: Mapping[str, Any], state: CompressionState, name: str, what: str
) -> None:
    """Make ``fresh`` what was saved of the parameter ``name``."""
    fresh.steps = saved["steps"]
    if saved["compressor"] == fresh.compressor.type:
        fresh.common = {key: value.clone() for key, value in saved["common"].items()}
    error: Tensor | None = saved.get("error")
    errors: Tensor | None = saved.get("errors")
    if errors is not None:
        error = errors[state.rank] if len(errors) == state.ranks else _mean(errors)
    if error is None or not fresh.compressor.error_feedback:
        return
    if tuple(error.shape) != fresh.shape:
        raise ValueError(
            f"{what}: the error of '{name}' is {tuple(error.shape)}, and the parameter "
            f"{fresh.shape}: it was saved with another model"
        )
    fresh.error = error.flatten().clone()


def _mean(errors: Tensor) -> Tensor:
    """The mean of all ranks' errors, added in rank order, so with the same bits on all ranks."""
    total = errors[0].clone()
    for each in errors[1:]:
        total += each
    return total * (1.0 / len(errors))


def _compare_steps(front: Front, found: Mapping[str, Kept], call: Call, what: str) -> None:
    """Raise ``ValueError`` unless all ranks load the same numbers of steps.

    Ranks whose numbers differ would choose different random elements, and add them up.
    """
    steps = sum(kept.steps for kept in found.values())
    name = f"byteprophet.compression.{len(found)}"
    collection = agreement.Collection(front.synchroniser, name, steps, "steps", call)
    of_ranks = collection.wait(front.timeout_s)
    if len(set(of_ranks)) > 1:
        raise ValueError(
            f"{what}: ranks load states of different steps: compressed gradients were averaged "
            f"{', '.join(map(str, of_ranks))} times in those of rank 0, 1, ..."
        )
