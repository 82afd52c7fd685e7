"""What a collective or a point-to-point message is, by the names and sizes that profiles give."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from byteprophet.timeline.kineto_sizes import count, message_bytes

_KINDS = {
    "allreduce": "all-reduce",
    "reducescatter": "reduce-scatter",
    "allgather": "all-gather",
    "alltoall": "all-to-all",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "sendrecv": "",  # NCCL's kernel for several kinds
    "send": "send",
    "recv": "receive",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
}
"""By letters in a name; the first that occurs counts."""

BETWEEN_TWO = ("send", "receive")
"""Kinds of point-to-point messages."""

_MOST_RANKS = 2**31


class Message(NamedTuple):
    """What is communicated.

    Attributes:
        kind: "all-reduce" and so on; "": not known.
        size_bytes: the larger side of the tensor; 0: not known.
        group: the process group's name, and its description if it has one; "": not known.
        ranks: the number of ranks in the group; 0: not known.
        members: the group's ranks, as the profile has them: ``[0, 8]``.
        peers: sender and receiver of a point-to-point message, within the group.
    """

    kind: str
    size_bytes: int = 0
    group: str = ""
    ranks: int = 0
    members: str = ""
    peers: tuple[int, int] | None = None

    @property
    def is_between_two(self) -> bool:
        """Whether it goes from one rank to another. ``peers`` may be unknown nevertheless."""
        return self.kind in BETWEEN_TWO


def kind_of(name: str) -> str:
    """The kind of communication with this name, of a kernel or of a call; "": not known."""
    letters = "".join(letter for letter in name.lower() if letter.isalpha())
    return next((kind for word, kind in _KINDS.items() if word in letters), "")


def message_of(name: str, arguments: Mapping[str, Any], size_bytes: int = 0) -> Message:
    """The message of a kernel or of a span with ``arguments``.

    ``size_bytes`` is used if the arguments do not state the size.
    """
    said = arguments.get("Collective name")
    said = said if isinstance(said, str) and said else name
    members = arguments.get("Process Group Ranks")
    kind = kind_of(said)
    sender, receiver = arguments.get("Src Rank"), arguments.get("Dst Rank")
    peers = None
    if (
        kind in BETWEEN_TWO
        and type(sender) is type(receiver) is int
        and 0 <= min(sender, receiver) <= max(sender, receiver) < _MOST_RANKS
    ):
        peers = sender, receiver
    return Message(
        kind,
        message_bytes(arguments) or size_bytes,
        _group(arguments),
        count(arguments.get("Group size")),
        members if isinstance(members, str) else "" if members is None else reprlib.repr(members),
        peers,
    )


def _group(arguments: Mapping[str, Any]) -> str:
    said = (arguments.get(f"Process Group {what}") for what in ("Name", "Description"))
    return " ".join(one for one in said if isinstance(one, str) and one and one != "undefined")
