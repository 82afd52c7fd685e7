"""Finds the optimizers of parameters: scripts and frameworks make them before or after the model.

The garbage collector knows all that exist. A count of constructions tells whether there may be new
ones, so that the search need not be repeated.

A wrapper (SAM, Lightning's and others) is an optimizer that holds another one of the same
parameters. It calls the ``step()`` of the inner one, so only that one counts.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Collection
from typing import Any

from torch.optim import Optimizer

from byteprophet.torch.tensors.naming import optimizer_parameters

_made = 0


def optimizers_made() -> int:
    """How many optimizers were made since ``count_optimizers``."""
    return _made


@functools.cache
def count_optimizers() -> None:
    """Count the optimizers that are made from now on."""
    plain = Optimizer.__init__

    @functools.wraps(plain)
    def counted(self: Any, *args: Any, **kwargs: Any) -> None:
        global _made
        _made += 1
        plain(self, *args, **kwargs)

    Optimizer.__init__ = counted  # type: ignore[method-assign]


def optimizers_of(order: Collection[int]) -> list[Optimizer]:
    """The optimizers that hold any of the parameters ``order``, by ``id``.

    They are in the order of their first such parameter, which is the same on every rank.
    """
    gc.collect()  # optimizers that only circles of references keep alive
    place = {key: number for number, key in enumerate(order)}
    first: dict[Optimizer, int] = {}
    for found in gc.get_objects():
        # A proxy may raise any error when it is asked for its class; an optimizer is none.
        if not issubclass(type(found), Optimizer) or "param_groups" not in vars(found):
            continue
        places = [place[id(p)] for p in optimizer_parameters(found) if id(p) in place]
        if places:
            first[found] = min(places)
    inner = [each for each in first if not _wraps(each, first)]
    return sorted(inner, key=first.__getitem__)


def _wraps(optimizer: Optimizer, others: Collection[Optimizer]) -> bool:
    mine = {id(parameter) for parameter in optimizer_parameters(optimizer)}
    return any(
        other is not optimizer
        and other in others
        and not mine.isdisjoint(id(parameter) for parameter in optimizer_parameters(other))
        for other in vars(optimizer).values()
        if isinstance(other, Optimizer)
    )
