"""Refuses calls of ``torch.distributed.checkpoint`` that would lose a part of an optimizer's state.

``get_optimizer_state_dict`` and ``set_optimizer_state_dict`` keep the state of parameters and their
groups, by name, and silently drop all other keys of ``state_dict()``: errors of compressed
gradients, delayed averages, and the steps of local SGD. Nothing of what they return says that these
are missing, so both are refused where there may be any.
"""

from __future__ import annotations

import sys
from types import FrameType

from byteprophet.torch.front.front import Front

_MODULE = "torch.distributed.checkpoint.state_dict"


def refuse_lossy(front: Front) -> None:
    """Raise ``RuntimeError`` if such a call is running, and ``front`` has what it would drop."""
    kept = _kept_beside(front)
    if kept and _MODULE in sys.modules and _is_called(sys._getframe()):
        raise RuntimeError(
            "byteprophet: torch.distributed.checkpoint saves and loads an optimizer without "
            f"{kept}: save optimizer.state_dict() and give it to load_state_dict(), or "
            "sharded_state_dict() and load_sharded_state_dict() on each rank"
        )


def _kept_beside(front: Front) -> str:
    """What ``state_dict()`` may have beside the state of parameters; "" if nothing."""
    if front.synchroniser.compression is not None:
        return "the state of compressed gradients"
    if any(slot.delay for slot in front.gradients.slots.values()):
        return "delayed averages"
    return "the steps of local SGD" if front.local else ""


def _is_called(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") == _MODULE:
            return True
        frame = frame.f_back
    return False
