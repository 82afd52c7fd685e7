"""Tensors in flight: any access from Python waits, so unfinished values are never seen.

``mark`` changes the class of a parameter or gradient to one that waits before any operation on its
values. ``unmark`` restores the original class. The tensor stays the same object, so this covers
every list, dictionary or closure that holds it. Accesses to metadata (shape, ``grad``, hooks) do
not wait.

This does not cover other tensors on the same memory that were made *before* the transfer: views,
``p.data``, ``p.detach()`` and arrays. The debug mode (``reads.py``) finds those that are tensors.

Threads: ``mark`` runs in the training thread and ``unmark`` there and in the updater thread. Waits
happen in the thread that accesses a tensor. The table is only used by single dictionary operations,
which are atomic under the GIL. ``unmark`` runs before the event that waiters wait for is set, so a
thread that has waited finds a plain tensor. The updater and the synchroniser access marked tensors
within ``values()``.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from byteprophet.torch.tensors.compiling import stays_eager

_ATTRIBUTES = (
    "device", "dtype", "grad", "grad_fn", "is_cpu", "is_cuda", "is_leaf", "is_sparse", "itemsize",
    "layout", "nbytes", "ndim", "requires_grad", "shape", "_backward_hooks", "_version",
)  # fmt: skip
_METHODS = (
    "__hash__", "__len__", "dim", "element_size", "is_complex", "is_contiguous",
    "is_floating_point", "nelement", "numel", "register_hook",
    "register_post_accumulate_grad_hook", "requires_grad_", "size", "stride",
)  # fmt: skip
# Functions that access no values, as __torch_function__ receives them. Not every version of torch
# has all of them.
_METADATA = {
    getattr(getattr(Tensor, name), access)
    for name in _ATTRIBUTES
    for access in ("__get__", "__set__", "__delete__")
    if hasattr(Tensor, name)
} | {getattr(Tensor, name) for name in _METHODS if hasattr(Tensor, name)}


class Mark(NamedTuple):
    """A tensor in flight. ``what`` names it. ``wait`` returns when it may be accessed."""

    tensor: Tensor
    what: str
    wait: Callable[[], None]


marks: dict[int, Mark] = {}  # by id of the tensor
_weak: dict[int, tuple[weakref.ref[Tensor], str, Callable[[Tensor], None]]] = {}
# Functions called before each wait with the name of the tensor. reads.py adds one.
on_wait: list[Callable[[str], None]] = []


def values() -> AbstractContextManager[None]:
    """Within this context, this thread accesses tensors without waiting, marked or not."""
    return torch._C.DisableTorchFunctionSubclass()


@stays_eager
def wait_for(tensor: object) -> None:
    """Wait until ``tensor`` is not in flight."""
    if not isinstance(tensor, _Pending):
        return
    mark = marks.get(id(tensor))
    if mark is not None:
        _tell(mark.what)
        mark.wait()
    weak = _weak.get(id(tensor))
    if weak is not None:
        held, what, wait = weak
        _tell(what)
        if (alive := held()) is not None:
            wait(alive)


def _tell(what: str) -> None:
    for listener in on_wait:
        listener(what)


class _Pending:
    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Wait for all arguments in flight, unless ``func`` only accesses metadata, then run it."""
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
        """Wait, then copy. ``Parameter``'s own method reads the class before the values."""
        wait_for(self)
        return self.__deepcopy__(memo)  # calls the method of the restored class

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Wait, then pickle, for the same reason."""
        wait_for(self)
        return self.__reduce_ex__(protocol)


_PENDING: dict[type, type] = {Tensor: _PendingTensor, nn.Parameter: _PendingParameter}
_OWN = {pending: own for own, pending in _PENDING.items()}


def can_mark(tensor: Tensor) -> bool:
    """Whether ``tensor`` can be marked: only ``Tensor`` and ``Parameter`` can, not subclasses."""
    return type(tensor) in _PENDING or type(tensor) in _OWN


def mark(tensor: Tensor, what: str, wait: Callable[[], None]) -> None:
    """Make every access to ``tensor`` call ``wait`` first, which must unmark it or raise."""
    marks[id(tensor)] = Mark(tensor, what, wait)
    _intercept(tensor)


def mark_weakly(tensor: Tensor, what: str, wait: Callable[[Tensor], None]) -> None:
    """As ``mark``, but for a tensor that only the script may still have. ``wait`` receives it."""
    key = id(tensor)
    _weak[key] = weakref.ref(tensor, lambda _: _weak.pop(key, None)), what, wait
    _intercept(tensor)


def _intercept(tensor: Tensor) -> None:
    pending = _PENDING.get(type(tensor))
    if pending is not None:
        tensor.__class__ = pending


def lose_weak() -> None:
    """In a forked child: let every access to what ``mark_weakly`` marked raise ``RuntimeError``."""
    for key, (held, what, _) in list(_weak.items()):
        _weak[key] = held, what, functools.partial(_refuse, what)


def _refuse(what: str, _tensor: Tensor) -> None:
    raise RuntimeError(
        f"byteprophet: {what} is read in a forked process, and its rank had only a shard of it: "
        "read it before the fork, on all ranks"
    )


def unmark(tensor: Tensor) -> None:
    """Restore the class of ``tensor`` and forget its mark."""
    own = _OWN.get(type(tensor))
    if own is not None:
        tensor.__class__ = own
    marks.pop(id(tensor), None)
    _weak.pop(id(tensor), None)
