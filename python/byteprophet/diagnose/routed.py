"""Which transport carried what, in a run of two transports: for finding out what a wait was for.

Transfers have the names of what servers sum, gradients or pieces of them. Collectives have those of
buckets ("all-gather 1.0" is of bucket 0). Waits have the names of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.job.routes import MESH, SERVERS, parts_of
from byteprophet.job.strategy import MIXED
from byteprophet.job.strategy_file import read_given


@dataclass(frozen=True)
class Routed:
    """``served``: the parameter of each part that servers sum, by the part's name.

    ``meshed``: the buckets that have the gradient of a parameter, or pieces of it, by their places.
    """

    served: Mapping[str, str] = field(default_factory=dict)
    meshed: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """What a reader of the diagnosis has to know."""
        if not self.meshed:
            return []
        return [
            "two transports: rates of links are those of pushes and pulls alone, because "
            "collectives do not tell when their bytes passed"
        ]

    def of_transfer(self, name: str) -> str:
        """The parameter whose gradient, or a piece of it, travels under ``name``."""
        return self.served.get(name, name)

    def of_collective(self, parameter: str, name: str) -> bool:
        """Whether the collective ``name`` has anything of ``parameter``."""
        _, _, place = name.rpartition(".")
        return place.isdecimal() and int(place) in self.meshed.get(parameter, ())


NOT_ROUTED = Routed()
"""Of a run of one transport."""


def read_routed(run_directory: Path) -> Routed:
    """What the strategy in ``run_directory`` says, if there is one of two transports.

    A damaged file says nothing here; a replay says what is wrong with it.
    """
    try:
        used = read_given(run_directory)
    except UserError:
        return NOT_ROUTED
    if used is None or used.strategy.runtime != MIXED:
        return NOT_ROUTED
    parts = list(parts_of(used.strategy.routes))
    tensors = {part.name: part.tensor for part in parts if part.way == MESH}
    meshed: dict[str, frozenset[int]] = {}
    for place, bucket in enumerate(used.strategy.buckets):
        for name in bucket.parameters:
            tensor = tensors[name]
            meshed[tensor] = meshed.get(tensor, frozenset()) | {place}
    return Routed({part.name: part.tensor for part in parts if part.way == SERVERS}, meshed)
