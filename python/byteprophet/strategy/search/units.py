"""A model in units that go to servers or over the mesh as a whole: what the search decides about.

A unit is a piece of a large gradient, or a run of small ones in forward order. All have about the
same size, so a routing is a row of yes and no, and cutting a gradient needs no decision of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from byteprophet.job import Model
from byteprophet.job.partitions import PAGE_BYTES
from byteprophet.job.routes import MESH, SERVERS, Piece, Route

Booleans = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

UNITS = 160
"""About so many: each is less than 1% of all bytes, and a replay takes a few milliseconds."""


@dataclass(frozen=True, eq=False)
class Units:
    """U units of a model, in forward order.

    ``members``: the places of each unit's parameters in the model: one, if it is a piece.
    ``size_bytes``: shape (U,). ``model``: what was cut.
    """

    model: Model
    members: tuple[tuple[int, ...], ...]
    size_bytes: Int64Array

    @classmethod
    def of(cls, model: Model, count: int = UNITS) -> Units:
        """About ``count`` units of ``model``; more, if it has many large parameters."""
        size_bytes = max(PAGE_BYTES, model.size_bytes // count // PAGE_BYTES * PAGE_BYTES)
        members: list[tuple[int, ...]] = []
        sizes: list[int] = []
        run: list[int] = []
        filled = 0
        for place, size in enumerate(model.sizes_bytes):
            if run and filled + size > size_bytes:
                members.append(tuple(run))
                sizes.append(filled)
                run, filled = [], 0
            if size > size_bytes:
                pieces = -(-size // size_bytes)
                members += [(place,)] * pieces
                sizes += [size_bytes] * (pieces - 1) + [size - (pieces - 1) * size_bytes]
            else:
                run.append(place)
                filled += size
        if run:
            members.append(tuple(run))
            sizes.append(filled)
        return cls(model, tuple(members), np.array(sizes, np.int64))

    def __len__(self) -> int:
        return len(self.members)

    def alternating(self, fraction: float) -> Booleans:
        """Which units go to servers so that these have ``fraction`` of each beginning, (U,)."""
        found = np.zeros(len(self), np.bool_)
        served = passed = 0
        for unit, size in enumerate(self.size_bytes.tolist()):
            passed += size
            if 2 * (fraction * passed - served) >= size and fraction > 0:
                found[unit] = True
                served += size
        return found

    def fraction(self, served: Booleans) -> float:
        """The part of all bytes that ``served`` units have."""
        return float(self.size_bytes[served].sum() / self.size_bytes.sum())

    def routes(self, served: Booleans) -> tuple[Route, ...]:
        """Routes of all gradients, of whose units those in ``served`` go to servers.

        A gradient is cut in two at most. Where its units stand in it makes no difference, because
        all of it is ready, and needed, at one time.
        """
        served_bytes = [0] * len(self.model)
        for unit in np.flatnonzero(served).tolist():
            members = self.members[unit]
            for place in members:
                whole = self.model.sizes_bytes[place]
                served_bytes[place] += whole if len(members) > 1 else int(self.size_bytes[unit])
        found = []
        for name, size, own in zip(
            self.model.names, self.model.sizes_bytes, served_bytes, strict=True
        ):
            pieces = (Piece(own, SERVERS), Piece(size - own, MESH))
            found.append(Route(name, tuple(piece for piece in pieces if piece.size_bytes)))
        return tuple(found)
