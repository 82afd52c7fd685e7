"""Refuses calls of ``torch.distributed.checkpoint`` that would lose a part of an optimizer's state.

``get_optimizer_state_dict`` keeps the state of parameters and their groups, by name, and silently
drops all other keys of ``state_dict()``: errors of compressed gradients, delayed averages, and the
steps of local SGD. Under local SGD, ranks also differ in the state that it keeps, of which
``torch.distributed.checkpoint.save`` writes one rank's. Nothing in what it returns says so, and it
is refused there.

``set_optimizer_state_dict`` loads what it returned. That is the state of an optimizer without all
of this, so it is whole, and is loaded as ``load_state_dict`` loads the state of such an optimizer.
"""

from __future__ import annotations

import sys
from types import FrameType

from byteprophet.torch.front.front import Front

_MODULE = "torch.distributed.checkpoint.state_dict"
_LOADS = ("set_optimizer_state_dict", "set_state_dict")
"""They may read the state before they replace it; nothing of what they read is kept."""


def refuse_lossy(front: Front) -> None:
    """Raise ``RuntimeError`` if such a call saves the state, and ``front`` has what it drops."""
    kept = _kept_beside(front)
    if kept and _MODULE in sys.modules and _saves(sys._getframe()):
        raise RuntimeError(
            f"byteprophet: torch.distributed.checkpoint saves an optimizer without {kept}: save "
            "optimizer.state_dict() and give it to load_state_dict(), or sharded_state_dict() and "
            "load_sharded_state_dict() on each rank"
        )


def _kept_beside(front: Front) -> str:
    """What ``state_dict()`` may have beside the state of parameters; "" if nothing."""
    if front.synchroniser.compression is not None:
        return "the state of compressed gradients"
    if any(slot.delay for slot in front.gradients.slots.values()):
        return "delayed averages"
    return "the steps of local SGD" if front.local else ""


def _saves(frame: FrameType | None) -> bool:
    saves = False
    while frame is not None:
        if frame.f_globals.get("__name__") == _MODULE:
            if frame.f_code.co_name in _LOADS:
                return False
            saves = True
        frame = frame.f_back
    return saves
