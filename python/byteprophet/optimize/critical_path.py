"""What the critical path of a job consists of, in words that explain a decision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from byteprophet.graph.labels import Kind
from byteprophet.graph.model import Int64Array
from byteprophet.replay import Replayed

_PARTS = {
    "forward": (Kind.FORWARD,),
    "backward": (Kind.BACKWARD,),
    "updates": (Kind.UPDATE, Kind.UPDATE_START),
    "compression": (Kind.COMPRESSION,),
    "reduce-scatters": (Kind.REDUCE_SCATTER, Kind.REDUCE_SCATTER_START),
    "all-gathers": (Kind.ALL_GATHER, Kind.ALL_GATHER_START),
    "pushes": (Kind.HAND_OVER, Kind.PUSH),
    "servers": (Kind.SUM, Kind.LAG, Kind.REQUEST, Kind.ACKNOWLEDGEMENT),
    "answers": (Kind.ANSWER_HAND_OVER, Kind.ANSWER_HEAD, Kind.ANSWER),
    "waits for cores": (Kind.STANDING,),
}

TRAVELLING = (*_PARTS["pushes"], *_PARTS["servers"], *_PARTS["answers"])
"""Kinds of what becomes of a gradient between a worker and its server."""


@dataclass(frozen=True)
class Path:
    """The operations of a critical path, in order; all of shape (operations,).

    ``kind`` and ``tensor`` are labels. ``took_ns``: from the end of the one before to its own.
    """

    kind: npt.NDArray[np.uint8]
    tensor: npt.NDArray[np.int32]
    took_ns: Int64Array

    def of(self, *kinds: Kind) -> Path:
        """The operations of these kinds."""
        chosen = np.isin(self.kind, kinds)
        return Path(self.kind[chosen], self.tensor[chosen], self.took_ns[chosen])


def critical_path(replayed: Replayed) -> Path:
    """The critical path of a graph that has been replayed."""
    path = replayed.critical_path()
    labels = replayed.graph.labels
    took_ns = np.diff(replayed.end_ns[path], prepend=0)
    return Path(labels.kind[path], labels.tensor[path], took_ns)


def shares(replayed: Replayed) -> dict[str, float]:
    """The parts of the critical path, the largest first, as shares of its time."""
    path = critical_path(replayed)
    whole_ns = max(1, int(path.took_ns.sum()))
    parts = {part: int(path.of(*kinds).took_ns.sum()) for part, kinds in _PARTS.items()}
    parts["other"] = whole_ns - sum(parts.values())
    ordered = sorted(parts.items(), key=lambda each: -each[1])
    return {part: time_ns / whole_ns for part, time_ns in ordered if time_ns}
