"""Finds the optimizers of parameters: scripts and frameworks make them before or after the model.

The garbage collector knows all that exist. A count of what is added to optimizers tells whether
there may be new ones, so that the search need not be repeated.

A wrapper (SAM, Lightning's and others) is an optimizer that holds another one of the same
parameters, and calls the ``step()`` of that one.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from byteprophet.torch.tensors.naming import optimizer_parameters

_additions = 0


@dataclass(frozen=True)
class Found:
    """Optimizers, in the order of their first parameter, which is the same on every rank."""

    own: tuple[Optimizer, ...]
    wrappers: tuple[Optimizer, ...]


def additions() -> int:
    """How many groups with watched parameters optimizers have got since ``watch_additions``."""
    return _additions


@functools.cache
def watch_additions(watches: Callable[[Tensor], bool]) -> None:
    """Count the groups with parameters that ``watches`` knows, from now on.

    An optimizer adds its groups when it is made. One of other parameters, such as those of an inner
    loop, is not counted.
    """
    plain = Optimizer.add_param_group

    @functools.wraps(plain)
    def counted(self: Any, param_group: dict[str, Any]) -> None:
        global _additions
        plain(self, param_group)
        _additions += any(map(watches, self.param_groups[-1]["params"]))

    Optimizer.add_param_group = counted  # type: ignore[method-assign]


def optimizers_of(parameters: Sequence[int]) -> Found:
    """The optimizers that hold any of ``parameters``, by ``id``. Takes a second at most.

    Optimizers that only circles of references keep alive count, unless they were collected.
    """
    place = {key: number for number, key in enumerate(parameters)}
    kinds = _subclasses(Optimizer)
    first: dict[Optimizer, int] = {}
    for found in [each for each in gc.get_objects() if type(each) in kinds]:
        # Those without groups of their own only stand for another one, such as Accelerate's.
        if "param_groups" in vars(found):
            places = [place[id(p)] for p in optimizer_parameters(found) if id(p) in place]
            if places:
                first[found] = min(places)
    ordered = sorted(first, key=first.__getitem__)
    wrappers = tuple(each for each in ordered if _wraps(each))
    return Found(tuple(each for each in ordered if each not in wrappers), wrappers)


def _subclasses(kind: type) -> set[type]:
    """``kind`` and all classes below it."""
    below: list[type] = type.__subclasses__(kind)
    return {kind}.union(*map(_subclasses, below))


def _wraps(optimizer: Optimizer) -> bool:
    mine = {id(parameter) for parameter in optimizer_parameters(optimizer)}
    return any(
        other is not optimizer
        and not mine.isdisjoint(id(parameter) for parameter in optimizer_parameters(other))
        for other in vars(optimizer).values()
        if isinstance(other, Optimizer) and "param_groups" in vars(other)
    )
