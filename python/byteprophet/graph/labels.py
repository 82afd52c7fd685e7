"""The labels of a graph's operations, as columns of small integers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError


class Kind(IntEnum):
    """The kind of an operation, with a description, and the roles of its rank and its peer."""

    words: str
    rank_is: str
    peer_is: str

    def __new__(cls, words: str, rank_is: str = "worker", peer_is: str = "worker") -> Kind:
        """Number the kinds in the order of their definition, from 0."""
        number = len(cls.__members__)
        kind = int.__new__(cls, number)
        kind._value_ = number
        kind.words, kind.rank_is, kind.peer_is = words, rank_is, peer_is
        return kind

    OPERATION = ""  # any operation; it only has a name
    ITERATION = "begin"
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"
    UPDATE_START = "start of updates"
    BARRIER = "barrier"
    # These are for parameter servers. A pull's request follows a little after its push was handed
    # to the transport.
    HAND_OVER = "hand-over", "worker", "server"
    PUSH = "push", "worker", "server"
    LAG = "lag before the request", "worker", "server"
    REQUEST = "request", "worker", "server"
    SUM = "sum", "server", "worker"
    ACKNOWLEDGEMENT = "acknowledgement", "server", "worker"
    ANSWER_HAND_OVER = "hand-over of the answer", "server", "worker"
    ANSWER_HEAD = "head of the answer", "server", "worker"  # the first bytes of a large one
    ANSWER = "answer", "server", "worker"
    STANDING = "wait for a core of the server", "worker", "server"
    # These are for collectives: their messages, and their start and end on a rank.
    REDUCE_SCATTER = "reduce-scatter"
    REDUCE_SCATTER_START = "start of the reduce-scatter"
    REDUCE_SCATTER_END = "end of the reduce-scatter"
    ALL_GATHER = "all-gather"
    ALL_GATHER_START = "start of the all-gather"
    ALL_GATHER_END = "end of the all-gather"
    ALL_REDUCE = "all-reduce"
    ALL_REDUCE_START = "start of the all-reduce"
    ALL_REDUCE_END = "end of the all-reduce"
    COMPRESSION = "compression"  # or what makes the average of compressed forms
    CARRYING = "carrying of messages"  # what they cost beside their bytes
    ASKING = "request for a message"


_KINDS = tuple(Kind)


class Label(NamedTuple):
    """Labels of operations that are added to a graph, as ``Labels`` defines them.

    Each field is one number for all operations, or one number per operation.
    """

    kind: npt.ArrayLike = Kind.OPERATION
    rank: npt.ArrayLike = -1
    peer: npt.ArrayLike = -1
    iteration: npt.ArrayLike = -1
    tensor: npt.ArrayLike = -1
    part: npt.ArrayLike = -1


COLUMNS = {
    "kind": np.uint8,
    "rank": np.int16,
    "peer": np.int16,
    "iteration": np.int32,
    "tensor": np.int32,
    "part": np.int32,
}


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of all operations.

    The arrays have shape (operations,), or are all empty. A value of -1 means none.

    Attributes:
        kind: the ``Kind``.
        rank: the rank that performs or sends the operation.
        peer: the rank that receives it or for which it is performed.
        iteration: the iteration, from 0.
        tensor: an index into ``names``.
        part: the tensor's partition, or the step of a ring.
        names: names of tensors, layers, buckets, or other objects of operations.
    """

    kind: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    rank: npt.NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, np.int16))
    peer: npt.NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, np.int16))
    iteration: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    tensor: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    part: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises ``UserError`` if a label refers to a kind or a name that does not exist."""
        for what, column, count in (
            ("kinds", self.kind, len(_KINDS)),
            ("names", self.tensor, len(self.names)),
        ):
            if len(column) and column.max() >= count:
                operation = int(np.argmax(column))
                raise UserError(
                    f"graph: the label of operation {operation} refers to number "
                    f"{column[operation]} of {count} {what}, which are counted from 0"
                )

    def __len__(self) -> int:
        return len(self.kind)

    def select(self, operations: npt.NDArray[np.int64]) -> Labels:
        """The labels of ``operations`` only, in their order."""
        if not len(self):
            return self
        return replace(self, **{name: getattr(self, name)[operations] for name in COLUMNS})

    def describe(self, operation: int) -> str:
        """The label of an operation in words; empty if it has none.

        For example, "push of layer1.weight part 2, worker 1 to server 0, iteration 4".
        """
        if operation >= len(self):
            return ""
        kind, rank, peer, iteration, tensor, part = (
            int(getattr(self, name)[operation]) for name in COLUMNS
        )
        is_a = _KINDS[kind]
        what = " of ".join(filter(None, (is_a.words, self.names[tensor] if tensor >= 0 else "")))
        if part >= 0:
            what += f" part {part}"
        who = f"{is_a.rank_is} {rank}" if rank >= 0 else ""
        if peer >= 0:
            who += f" to {is_a.peer_is} {peer}"
        return ", ".join(filter(None, (what, who, f"iteration {iteration}" * (iteration >= 0))))
