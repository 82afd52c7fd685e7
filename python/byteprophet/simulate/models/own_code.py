"""Code of users: the functions that make their models, and what it raises, in one line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byteprophet.errors import EndedBySignal, UserError

if TYPE_CHECKING:
    from torch import nn

Make = Callable[[int], "tuple[nn.Module, tuple[Any, ...]]"]
"""A user's function: for a batch size, the module and its inputs."""


def import_make(text: str) -> Make:
    """The function that ``text`` names as ``module:function``.

    Raises:
        UserError: there is none, or its module cannot be imported.
    """
    name, _, function = text.partition(":")
    if not name or not function:
        raise UserError(f"model {text}: expected module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with refusing_failures(f"model {text}", "cannot be imported"):
        found = getattr(importlib.import_module(name), function)
    if not callable(found):
        raise UserError(f"model {text}: is no function of a batch size")
    return found  # type: ignore[no-any-return]


@contextmanager
def refusing_failures(name: str, what: str = "failed") -> Iterator[None]:
    """Within this context, whatever a user's code raises is a ``UserError`` of one line."""
    try:
        yield
    except (UserError, EndedBySignal):
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever that code raises
        said = (str(error).strip().splitlines() or ["no message"])[0]
        raise UserError(f"{name}: {what}: {type(error).__name__}: {said}") from None
