"""A parameter's ``grad`` between ``step()`` and its update: who touches it waits.

After ``step()`` the gradient is still under way, yet ``parameter.grad`` must be what it is in a job
that waits: the average, which a script may read, change or clear (``p.grad.zero_()``). So ``grad``
then is an alias of the gradient that first waits for the update, whatever is done with it from
Python.

Threads: waits run where the script touches the gradient; nothing else happens here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree


class PendingGradient(Tensor):
    """An alias of a gradient; made by ``pending``."""

    _wait: Callable[[], None]
    _gradient: Tensor

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Wait, then do with the gradient itself what was asked for."""
        plain_args, plain_kwargs = _pytree.tree_map(_waited, (tuple(args), dict(kwargs or {})))
        return func(*plain_args, **plain_kwargs)


def pending(gradient: Tensor, wait: Callable[[], None]) -> PendingGradient:
    """An alias of ``gradient`` that calls ``wait`` before anything is done with it."""
    alias = gradient.as_subclass(PendingGradient)
    alias._wait = wait
    alias._gradient = gradient
    return alias


def without_waiting(gradient: Tensor | None) -> Tensor | None:
    """The gradient itself, if ``gradient`` is an alias of one."""
    return gradient._gradient if isinstance(gradient, PendingGradient) else gradient


def _waited(value: Any) -> Any:
    if isinstance(value, PendingGradient):
        value._wait()
        return value._gradient
    return value
