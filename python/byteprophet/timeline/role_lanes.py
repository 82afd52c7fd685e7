"""What a role does over time, as lanes: for pictures of jobs that were replayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from byteprophet.order_statistics import distinct
from byteprophet.timeline.lanes import Times, disjoint_lanes


@dataclass(frozen=True, eq=False)
class Lane:
    """Slices of one kind of work of one role, in any order, shape (n,) each.

    ``role``: such as "worker-0". ``label``: what the lane shows. ``kind`` and ``name``: texts of
    each slice. Slices may overlap.
    """

    role: str
    label: str
    begin_ns: Times
    end_ns: Times
    kind: tuple[str, ...]
    name: tuple[str, ...]
    size_bytes: Times

    def __len__(self) -> int:
        return len(self.begin_ns)

    def at(self, rows: Any) -> Lane:
        """The slices with these indices, or where a mask is true."""
        chosen = np.arange(len(self))[rows]
        return Lane(
            self.role,
            self.label,
            self.begin_ns[chosen],
            self.end_ns[chosen],
            tuple(self.kind[row] for row in chosen.tolist()),
            tuple(self.name[row] for row in chosen.tolist()),
            self.size_bytes[chosen],
        )

    def within(self, begin_ns: int, end_ns: int) -> Lane:
        """What is seen between two moments; times count from the first. Slices are cut there."""
        seen = self.at((self.begin_ns < end_ns) & (self.end_ns > begin_ns))
        begins_ns = np.maximum(seen.begin_ns, begin_ns) - begin_ns
        ends_ns = np.minimum(seen.end_ns, end_ns) - begin_ns
        return replace(seen, begin_ns=begins_ns, end_ns=ends_ns)

    def spread(self) -> Iterator[Lane]:
        """As many lanes as keep slices apart, each in the order of time."""
        ordered = self.at(np.lexsort((self.end_ns, self.begin_ns)))
        lanes = disjoint_lanes(ordered.begin_ns, ordered.end_ns)
        for number in distinct(lanes).tolist():
            yield ordered.at(lanes == number)
