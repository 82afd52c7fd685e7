"""Coarse views of a model, and its repeated parts: dPRO's coarsened view and symmetry.

Buckets are runs of an order of parameters, so a set of buckets is a set of *cuts*: cut i stands
before the parameter at place i. A view says where a search may cut: at first between blocks only
("layer3.12" of ResNet, "encoder.layer.7" of BERT), then between modules, then anywhere.

Two cuts are *twins* if they stand at the same place of equal blocks. Blocks are found by names:
parameters are alike if they have the same size, and names that differ in numbers only. A search
tries a change at all twins at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache

from byteprophet.job import Model, Parameter

_NUMBER = re.compile(r"\d+")


class View(Enum):
    """Where a search may cut, the coarsest first."""

    BLOCKS = "between blocks"
    MODULES = "between modules"
    PARAMETERS = "anywhere"


def cuts_of(view: View, names: Sequence[str]) -> tuple[int, ...]:
    """The cuts that ``view`` allows in parameters of these names, in ascending order."""
    if view is View.PARAMETERS:
        return tuple(range(1, len(names)))
    owner = _block if view is View.BLOCKS else _module
    owners = [owner(name) for name in names]
    return tuple(place for place in range(1, len(names)) if owners[place - 1] != owners[place])


def twins_of(model: Model, order: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """For each cut of ``order`` (indices of parameters), all its twins, itself among them.

    Entry i is that of cut i. There is no cut 0; its entry is empty.
    """
    kinds = [_kind(parameter) for parameter in model.parameters]
    keys = [(kinds[order[place - 1]], kinds[order[place]]) for place in range(1, len(order))]
    places: dict[object, list[int]] = {}
    for place, key in enumerate(keys, 1):
        places.setdefault(key, []).append(place)
    return ((), *(tuple(places[key]) for key in keys))


def alike(model: Model, place: int) -> tuple[str, ...]:
    """The names of the parameters that are alike the one at ``place``, itself among them."""
    kind = _kind(model.parameters[place])
    return tuple(each.name for each in model.parameters if _kind(each) == kind)


def _kind(parameter: Parameter) -> tuple[str, int]:
    return _without_numbers(parameter.name), parameter.size_bytes


@lru_cache(1 << 16)  # a search asks for the same names thousands of times
def _without_numbers(name: str) -> str:
    return _NUMBER.sub("*", name)


def _block(name: str) -> str:
    """The name up to its first part that is a number; without one, that of the module."""
    parts = name.split(".")
    for place, part in enumerate(parts[:-1]):
        if part.isdecimal():
            return ".".join(parts[: place + 1])
    return _module(name)


def _module(name: str) -> str:
    return name.rpartition(".")[0] or name
