"""Finds the optimizers of parameters: scripts and frameworks make them before or after the model.

The garbage collector knows all that exist, except for those that a script has frozen, which
``note_all`` has noted. A count of what is added to optimizers tells whether there may be new ones,
so that the search need not be repeated.

A wrapper (SAM, Lightning's and others) is an optimizer that holds another one of the same
parameters, and calls the ``step()`` of that one.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from byteprophet.torch.tensors.naming import optimizer_parameters

_noted: weakref.WeakSet[Optimizer] = weakref.WeakSet()
_watches: Callable[[Tensor], bool] | None = None
_additions = 0


@dataclass(frozen=True)
class Found:
    """Optimizers, in the order of their first parameter, which is the same on every rank."""

    own: tuple[Optimizer, ...]
    wrappers: tuple[Optimizer, ...]


def additions() -> int:
    """How many groups with watched parameters optimizers have got since ``watch_additions``."""
    return _additions


def watch_additions(watches: Callable[[Tensor], bool]) -> None:
    """Count the groups with parameters that ``watches`` knows, from now on.

    An optimizer adds its groups when it is made. One of other parameters, such as those of an inner
    loop, is not counted.
    """
    global _watches
    note_all()
    _watches = watches


@functools.cache
def note_all() -> None:
    """Note all optimizers that there are, and those that are made later.

    The garbage collector forgets optimizers when the script calls ``gc.freeze()``.
    """
    _noted.update(_collected())
    plain = Optimizer.add_param_group

    @functools.wraps(plain)
    def noted(self: Any, param_group: dict[str, Any]) -> None:
        global _additions
        _noted.add(self)
        plain(self, param_group)
        if _watches is not None:
            _additions += any(map(_watches, self.param_groups[-1]["params"]))

    Optimizer.add_param_group = noted  # type: ignore[method-assign]


def _collected() -> list[Optimizer]:
    """The optimizers that the garbage collector knows."""
    kinds = _subclasses(Optimizer)
    return [each for each in gc.get_objects() if type(each) in kinds]


def optimizers_of(parameters: Sequence[int]) -> Found:
    """The optimizers that hold any of ``parameters``, by ``id``. Takes a second at most.

    Optimizers that only circles of references keep alive count, unless they were collected.
    """
    place = {key: number for number, key in enumerate(parameters)}
    first: dict[Optimizer, int] = {}
    for found in dict.fromkeys([*_collected(), *_noted]):
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
