"""Which transport carries which gradient, in a job that has two.

The workers of such a job are ranks, too. *Servers* sum some of the gradients, and the ranks
all-reduce the others over the *mesh* of their own connections. A gradient may be cut into *pieces*,
each of which goes its own way under a name of its own. The pieces lie one after the other in the
memory of the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from byteprophet.job.model import Model, Parameter
from byteprophet.runtime_settings import DEFAULT_TIMEOUT_S

SERVERS, MESH = "servers", "mesh"
WAYS = (SERVERS, MESH)


@dataclass(frozen=True)
class Piece:
    """So many bytes of a gradient, in its own type. ``way`` is one of ``WAYS``."""

    size_bytes: int
    way: str


@dataclass(frozen=True)
class Route:
    """The pieces of the gradient of ``tensor``, in the order of its memory. One: it is whole."""

    tensor: str
    pieces: tuple[Piece, ...]

    @property
    def is_cut(self) -> bool:
        """Whether the gradient has several pieces."""
        return len(self.pieces) > 1

    @property
    def size_bytes(self) -> int:
        """The size of all pieces."""
        return sum(piece.size_bytes for piece in self.pieces)


@dataclass(frozen=True)
class Part:
    """What travels on its own under ``name``: a gradient, or a piece of the one of ``tensor``.

    ``first_byte``: where it begins in the gradient.
    """

    name: str
    tensor: str
    first_byte: int
    size_bytes: int
    way: str


def parts_of(routes: Iterable[Route]) -> Iterator[Part]:
    """The parts of all gradients. Piece n of several is called ``tensor[n]``, from 0."""
    for route in routes:
        first_byte = 0
        for number, piece in enumerate(route.pieces):
            name = f"{route.tensor}[{number}]" if route.is_cut else route.tensor
            yield Part(name, route.tensor, first_byte, piece.size_bytes, piece.way)
            first_byte += piece.size_bytes


def carried(model: Model, routes: Iterable[Route], way: str) -> Model:
    """What goes ``way``, as a model: its parameters are parts, in the order of ``model``."""
    layers = {each.name: each.layer for each in model.parameters}
    mine = (part for part in parts_of(in_order(model, routes)) if part.way == way)
    return Model(tuple(Parameter(each.name, each.size_bytes, layers[each.tensor]) for each in mine))


def in_order(model: Model, routes: Iterable[Route]) -> tuple[Route, ...]:
    """``routes`` in the order in which the forward pass of ``model`` needs their gradients."""
    return tuple(sorted(routes, key=lambda route: model.places[route.tensor]))


def bytes_of(model: Model, routes: Iterable[Route], way: str) -> tuple[int, ...]:
    """How many bytes of each gradient of ``model`` go ``way``, in the model's order."""
    found = dict.fromkeys(model.names, 0)
    for part in parts_of(routes):
        if part.way == way:
            found[part.tensor] += part.size_bytes
    return tuple(found.values())


def check_mesh_bps(model: Model, routes: Iterable[Route], mesh_bps: int) -> None:
    """Raises ``ValueError`` if a mesh that sends so many bits per second would stand still.

    A rank sends at least what goes over the mesh once per step, and no rank waits for longer than
    ``DEFAULT_TIMEOUT_S`` for it, unless the user says so. 0: the mesh is not paced.
    """
    size_bytes = sum(bytes_of(model, routes, MESH))
    least_bps = math.ceil(8 * size_bytes / DEFAULT_TIMEOUT_S)
    if 0 < mesh_bps < least_bps:
        raise ValueError(
            f"mesh_bps {mesh_bps}: at this rate, {size_bytes} bytes over the mesh take longer than "
            f"{DEFAULT_TIMEOUT_S:.0f} s in each step: it must be 0 (not paced) or at least "
            f"{least_bps} bits per second"
        )
