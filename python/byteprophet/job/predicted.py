"""What a replay expected of a strategy when it was made, as its file has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_MOST = 1 << 50


@dataclass(frozen=True)
class Predicted:
    """The time of an iteration, and the interval in which it should be.

    ``bound_ns``: no schedule of the same job under the same routes is faster.
    """

    iteration_ns: int
    interval_ns: tuple[int, int]
    bound_ns: int

    @property
    def gap(self) -> float:
        """By how much of the predicted time the bound is below it."""
        return 1 - self.bound_ns / max(1, self.iteration_ns)

    def as_json(self) -> dict[str, Any]:
        """As ``read_predicted`` reads it. The gap stands there for people."""
        return {
            "iteration_ns": self.iteration_ns,
            "interval_ns": list(self.interval_ns),
            "bound_ns": self.bound_ns,
            "gap": round(self.gap, 4),
        }


def read_predicted(row: object) -> Predicted | None:
    """Read what ``as_json`` made; None for None. Raises ``ValueError`` for anything else."""
    if row is None:
        return None
    if isinstance(row, dict):
        interval_ns = row.get("interval_ns")
        if isinstance(interval_ns, list) and len(interval_ns) == 2:
            times_ns = (row.get("iteration_ns"), *interval_ns, row.get("bound_ns"))
            if all(type(each) is int and 0 <= each <= _MOST for each in times_ns):
                iteration_ns, low_ns, high_ns, bound_ns = times_ns
                return Predicted(iteration_ns, (low_ns, high_ns), bound_ns)
    raise ValueError(
        "predicted: must have iteration_ns, interval_ns (two times) and bound_ns, as integers from "
        "0 to 2^50"
    )
