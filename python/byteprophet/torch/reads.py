"""The debug mode: names the line of a script that reads what is still under way.

``BYTEPROPHET_DEBUG=1``. A parameter or gradient touched while it travels makes the script wait
there; that is right, but it costs time: one ``PendingReadWarning`` per line. Another tensor on the
same memory (a view, ``p.data`` or ``p.detach()`` taken before the transfer) cannot wait and would
give a value of some moment: ``RuntimeError``. Only arrays of other libraries on that memory go
unseen.

Threads: watches the thread that calls ``watch``, which is the one that trains: torch keeps its
dispatch modes per thread, and other threads here are ours.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from byteprophet.torch import pending

_OURS = tuple(f"{Path(module).parent}/" for module in (torch.__file__, __file__))
_watching: list[TorchDispatchMode] = []
_warned: dict[Any, Any] = {}  # by the warnings module: each line once


class PendingReadWarning(UserWarning):
    """A line that waits for a transfer outside the flush points."""


def watch() -> None:
    """Watch the calling thread from now on."""
    if not _watching:
        pending.on_wait.append(_warn)
        _watching.append(_Aliases())  # type: ignore[no-untyped-call]
        _watching[0].__enter__()  # type: ignore[no-untyped-call]


def unwatch() -> None:
    """Undo ``watch``, in the same thread."""
    if _watching:
        pending.on_wait.remove(_warn)
        _watching.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]


def reading_line() -> tuple[str, int]:
    """File and number of the innermost line that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _warn(what: str) -> None:
    file, line = reading_line()
    message = f"byteprophet: this line waits for {what}, whose transfer is under way"
    warnings.warn_explicit(message, PendingReadWarning, file, line, registry=_warned)


class _Aliases(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation with the memory it works on."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if pending.marks and not func.is_view:
            under_way = {_memory(m.tensor): m.what for m in list(pending.marks.values())}
            for leaf in _pytree.tree_leaves((tuple(args), dict(kwargs or {}))):
                what = under_way.get(_memory(leaf)) if isinstance(leaf, Tensor) else None
                if what is not None:
                    _refuse(what)
        return func(*args, **(kwargs or {}))


def _memory(tensor: Tensor) -> int | None:
    with pending.values():
        return tensor.untyped_storage().data_ptr() or None


def _refuse(what: str) -> None:
    file, line = reading_line()
    raise RuntimeError(
        f"byteprophet: {file}:{line} uses the memory of {what}, whose transfer is under way, by "
        "another tensor (a view, .data or detach() made earlier): use the parameter itself, or "
        "call optimizer.finish() first"
    )
