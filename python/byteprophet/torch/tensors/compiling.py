"""Lets our code coexist with ``torch.compile``: functions that stay eager, unaffected updates.

``torch.compiler.is_compiling()`` is true for the whole process while any thread compiles. torch's
optimizers then take other code paths, whose results differ in the last bits. An update that the
updater thread applies meanwhile must equal the one that ``step()`` would have made. So we make the
function return False in threads that use ``never_compiling``.

We replace its code, not the function itself, because torch's tracer knows the function by its
identity, and modules have imported it by name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])
_STATE = "_byteprophet_thread"  # a name in torch.compiler, where the replaced code looks up globals


def stays_eager(function: _Function) -> _Function:
    """Make ``function`` a graph break in compiled code. What it calls is not compiled either."""
    return cast(_Function, torch.compiler.disable(function))  # type: ignore[no-untyped-call]


@contextmanager
def never_compiling() -> Iterator[None]:
    """Within this context, ``torch.compiler.is_compiling()`` returns False in this thread."""
    state: Any = getattr(torch.compiler, _STATE)
    state.never_compiling = True
    try:
        yield
    finally:
        state.never_compiling = False


def _is_compiling() -> bool:
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        return False
    return (
        _is_compiling_flag  # type: ignore[name-defined]  # noqa: F821
        and not getattr(_byteprophet_thread, "never_compiling", False)  # type: ignore[name-defined]  # noqa: F821
    )


def _install() -> None:
    if hasattr(torch.compiler, _STATE):
        return
    setattr(torch.compiler, _STATE, threading.local())
    replaced = torch.compiler.is_compiling.__code__
    # Keep file and line, because tracers skip torch's own files, and TorchScript reads the source.
    torch.compiler.is_compiling.__code__ = _is_compiling.__code__.replace(
        co_filename=replaced.co_filename,
        co_firstlineno=replaced.co_firstlineno,
        co_name=replaced.co_name,
    )


_install()
