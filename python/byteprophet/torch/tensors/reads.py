"""The debug mode: names the line of a script that reads data in flight.

``BYTEPROPHET_DEBUG=1`` enables it. If the script accesses a parameter or gradient in flight, it
waits there. The result is right, but waiting costs time, so each such line gives a
``PendingReadWarning``. Another tensor on the same memory (a view, ``p.data`` or ``p.detach()`` made
before the transfer) cannot wait, and its value would depend on timing. Using one raises
``RuntimeError``. Accesses by arrays of other libraries on that memory are not detected.

Threads: only the thread that calls ``watch``, the training thread, is watched, because torch keeps
its dispatch modes per thread.
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

from byteprophet.torch.tensors import pending
from byteprophet.torch.tensors.dense import addresses

_OURS = tuple(f"{folder}/" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
_watching: list[TorchDispatchMode] = []
_warned: dict[Any, Any] = {}  # the warnings module uses it to warn once per line


class PendingReadWarning(UserWarning):
    """Warns of a line of the script that waits for a transfer."""


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
    """The file and number of the innermost line that is neither in torch nor in this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _warn(what: str) -> None:
    file, line = reading_line()
    message = f"byteprophet: this line waits for {what}, whose transfer is in flight"
    warnings.warn_explicit(message, PendingReadWarning, file, line, registry=_warned)


class _Aliases(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Checks the memory that every operation accesses, except within ``pending.values()``."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if pending.marks and torch._C._is_torch_function_enabled() and not func.is_view:
            in_flight = [(_memory(m.tensor), m.what) for m in list(pending.marks.values())]
            for leaf in _pytree.tree_leaves((tuple(args), dict(kwargs or {}))):
                if isinstance(leaf, Tensor):
                    _check(_memory(leaf), in_flight)
        return func(*args, **(kwargs or {}))


def _memory(tensor: Tensor) -> range:
    """The addresses that ``tensor`` has values at; none if it has no memory of its own.

    Tensors of rare layouts (compressed rows, mkldnn) count as such: what is in flight has none.
    """
    with pending.values():
        if tensor.layout not in (torch.strided, torch.sparse_coo):
            return range(0)
        stored = tensor._values() if tensor.is_sparse else tensor
        return addresses(stored) if stored.untyped_storage().data_ptr() else range(0)


def _check(used: range, in_flight: Sequence[tuple[range, str]]) -> None:
    for memory, what in in_flight:
        if max(memory.start, used.start) < min(memory.stop, used.stop):
            _refuse(what)


def _refuse(what: str) -> None:
    file, line = reading_line()
    raise RuntimeError(
        f"byteprophet: {file}:{line} uses the memory of {what}, whose transfer is in flight, "
        "through another tensor (a view, .data or detach() made earlier): use the parameter, "
        "or call optimizer.finish() first"
    )
