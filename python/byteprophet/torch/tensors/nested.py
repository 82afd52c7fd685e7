"""Finds and replaces the tensors in what a module takes or returns.

Containers that torch knows are opened (``torch.utils._pytree``), and dataclasses, which scripts use
as outputs without registering them there. A tensor in an object of another kind is not found, and
``hidden_in`` says so.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree

OPENED = "a tensor, tuple, list, dict or dataclass"


def leaves(values: object) -> Iterator[Any]:
    """What is in ``values``, which may be nested, and no container."""
    for leaf in _pytree.tree_leaves(values):
        if is_record(leaf):
            yield from leaves(list(fields_of(leaf).values()))
        else:
            yield leaf


def tensors_in(values: object) -> Iterator[Tensor]:
    """The tensors in ``values``, which may be nested."""
    return (leaf for leaf in leaves(values) if isinstance(leaf, Tensor))


def with_tensors(change: Callable[[Tensor], Tensor], values: Any) -> Any:
    """A copy of ``values`` with ``change`` of each tensor in place of it."""

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return change(leaf)
        if not is_record(leaf):
            return leaf
        made = copy.copy(leaf)
        for name, value in fields_of(leaf).items():
            object.__setattr__(made, name, with_tensors(change, value))  # it may be frozen
        return made

    return _pytree.tree_map(changed, values)


def hidden_in(values: object, counts: Callable[[Tensor], bool]) -> str:
    """The type of an object in ``values`` with a tensor that ``counts`` and is not found; or ""."""
    met: set[int] = set()
    found = (leaf for leaf in leaves(values) if not isinstance(leaf, Tensor))
    return next((type(leaf).__name__ for leaf in found if _holds(leaf, counts, met)), "")


def _holds(value: object, counts: Callable[[Tensor], bool], met: set[int]) -> bool:
    for leaf in leaves(value):
        if isinstance(leaf, Tensor):
            if counts(leaf):
                return True
        elif id(leaf) not in met and not isinstance(leaf, (type, nn.Module)):
            met.add(id(leaf))
            if _holds(_inner(leaf), counts, met):
                return True
    return False


def _inner(leaf: object) -> list[Any]:
    """What an object holds as attributes or as elements."""
    inner = list(fields_of(leaf).values())
    if isinstance(leaf, Mapping):
        inner += leaf.values()
    elif isinstance(leaf, (list, tuple, set, frozenset)):
        inner += leaf
    return inner


def is_record(value: object) -> bool:
    """Whether ``value`` is a dataclass, which is opened."""
    return dataclasses.is_dataclass(value) and not isinstance(value, (type, nn.Module, Tensor))


def fields_of(value: object) -> dict[str, Any]:
    """The attributes that ``value`` itself has, in slots, too."""
    slots = (getattr(kind, "__slots__", ()) for kind in type(value).__mro__)
    names = [name for each in slots for name in ((each,) if isinstance(each, str) else each)]
    held = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {**held, **getattr(value, "__dict__", {})}
