"""Lets ``torch.distributed.checkpoint`` save and load optimizers, where it does so without loss.

``get_optimizer_state_dict`` keeps the state of parameters and their groups, by name, and silently
drops all other keys of ``state_dict()``: errors of compressed gradients, delayed averages, and the
steps of local SGD. Under local SGD, ranks also differ in the state that it keeps, of which
``torch.distributed.checkpoint.save`` writes one rank's. Nothing in what it returns says so, and it
is refused there.

``set_optimizer_state_dict`` loads what it returned. That is the state of an optimizer without all
of this, so it is whole, and is loaded as ``load_state_dict`` loads the state of such an optimizer.

Both call ``step()`` if an optimizer has no state and no gradients, so that it gets state: with
gradients of zeros, and a learning rate of 0. That is no step of training. If it were one, it would
stand for a batch where steps accumulate, delay averages or are local.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

from byteprophet.torch.front.front import Front

_MODULE = "torch.distributed.checkpoint.state_dict"
_LOADS = {"set_optimizer_state_dict", "set_state_dict"}
"""They may read the state before they replace it; nothing of what they read is kept."""


def refuse_lossy(front: Front) -> None:
    """Raise ``RuntimeError`` if such a call saves the state, and ``front`` has what it drops."""
    kept = _kept_beside(front)
    running = {*_running()} if kept else set()
    if running and running.isdisjoint(_LOADS):
        raise RuntimeError(
            f"byteprophet: torch.distributed.checkpoint saves an optimizer without {kept}: save "
            "optimizer.state_dict() and give it to load_state_dict(), or sharded_state_dict() and "
            "load_sharded_state_dict() on each rank"
        )


def makes_state() -> bool:
    """Whether ``step()`` was called by ``torch.distributed.checkpoint``, so as to make state."""
    return any(_running())


def _kept_beside(front: Front) -> str:
    """What ``state_dict()`` may have beside the state of parameters; "" if nothing."""
    if front.synchroniser.compression is not None:
        return "the state of compressed gradients"
    if any(slot.delay for slot in front.gradients.slots.values()):
        return "delayed averages"
    return "the steps of local SGD" if front.local else ""


def _running() -> Iterator[str]:
    """The functions of ``torch.distributed.checkpoint`` that are running in this thread."""
    frame: FrameType | None = sys._getframe() if _MODULE in sys.modules else None
    while frame is not None:
        if frame.f_globals.get("__name__") == _MODULE:
            yield frame.f_code.co_name
        frame = frame.f_back
