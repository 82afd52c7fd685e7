"""Tensors under way: whoever touches one from Python waits, so nobody sees what is not finished.

``mark`` changes the class of the very tensor, parameter or gradient, to one that waits before
anything is done with its values; ``unmark`` gives it its own class back. It stays the same object,
so every list, dictionary or closure that holds it is covered, whenever it was made. What only asks
for its metadata (shape, ``grad``, hooks) does not wait.

Not covered, as they are other tensors on the same memory: views, ``p.data``, ``p.detach()`` and
arrays made *before* the transfer. The debug mode (``reads.py``) finds them.

Threads: ``mark`` runs in the thread that trains, ``unmark`` there and in the updater thread, waits
where the script touches a tensor. The table is only used by single dictionary operations, which are
atomic under the interpreter's lock. ``unmark`` comes before the event that waiters wait for, so who
has waited finds a plain tensor. The updater and the synchroniser work on marked tensors: they do so
under ``values()``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree

_ATTRIBUTES = (
    "device", "dtype", "grad", "grad_fn", "is_cpu", "is_cuda", "is_leaf", "is_sparse", "itemsize",
    "layout", "nbytes", "ndim", "requires_grad", "shape", "_backward_hooks", "_version",
)  # fmt: skip
_METHODS = (
    "__hash__", "__len__", "dim", "element_size", "is_complex", "is_contiguous",
    "is_floating_point", "nelement", "numel", "register_hook",
    "register_post_accumulate_grad_hook", "requires_grad_", "size", "stride",
)  # fmt: skip
# What asks for no values, as __torch_function__ gets it; torch's versions differ a little.
_METADATA = {
    getattr(getattr(Tensor, name), access)
    for name in _ATTRIBUTES
    for access in ("__get__", "__set__", "__delete__")
    if hasattr(Tensor, name)
} | {getattr(Tensor, name) for name in _METHODS if hasattr(Tensor, name)}


class Mark(NamedTuple):
    """Why ``tensor`` may not be touched: ``what`` names it, ``wait`` returns when it may be."""

    tensor: Tensor
    what: str
    wait: Callable[[], None]


marks: dict[int, Mark] = {}  # by id of the tensor
# Called before each wait with what is waited for; reads.py sets it.
on_wait: list[Callable[[str], None]] = []


def values() -> AbstractContextManager[None]:
    """Within it, this thread works on tensors as they are, marked or not."""
    return torch._C.DisableTorchFunctionSubclass()


def wait_for(tensor: object) -> None:
    """Return when ``tensor`` is not under way."""
    mark = marks.get(id(tensor)) if isinstance(tensor, _Pending) else None
    if mark is not None:
        for listener in on_wait:
            listener(mark.what)
        mark.wait()


class _Pending:
    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Wait, then do what was asked for."""
        if func in _METADATA:
            with values():
                return func(*args, **(kwargs or {}))
        for leaf in _pytree.tree_leaves((tuple(args), dict(kwargs or {}))):
            wait_for(leaf)
        return func(*args, **(kwargs or {}))


class _PendingTensor(_Pending, Tensor):
    pass


class _PendingParameter(_Pending, nn.Parameter):
    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        """A copy of what it will be. ``Parameter``'s own asks for the class before the values."""
        wait_for(self)
        return self.__deepcopy__(memo)  # of the class that it has by now

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For pickling, likewise."""
        wait_for(self)
        return self.__reduce_ex__(protocol)


_PENDING: dict[type, type] = {Tensor: _PendingTensor, nn.Parameter: _PendingParameter}
_OWN = {pending: own for own, pending in _PENDING.items()}


def can_mark(tensor: Tensor) -> bool:
    """Whether ``tensor`` is of a class that can be marked; subclasses of others' cannot."""
    return type(tensor) in _PENDING or type(tensor) in _OWN


def mark(tensor: Tensor, what: str, wait: Callable[[], None]) -> None:
    """Let whoever touches ``tensor`` call ``wait`` first, which must unmark it or raise."""
    marks[id(tensor)] = Mark(tensor, what, wait)
    tensor.__class__ = _PENDING.get(type(tensor), type(tensor))


def unmark(tensor: Tensor) -> None:
    """The opposite of ``mark``."""
    tensor.__class__ = _OWN.get(type(tensor), type(tensor))
    marks.pop(id(tensor), None)
