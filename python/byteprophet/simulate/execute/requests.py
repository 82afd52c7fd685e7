"""Requests for messages between stages that wait in line, as gloo's do.

gloo sends a message when its receiver has asked for it. The request travels over the connection
that also carries the receiver's own messages to the sender, in order. So it waits behind a message
that is being sent. One for which nobody has asked yet does not hold it up.

When stages ask is known only from a simulation. So a job is simulated without this first, and then
again with what its times say. Messages then wait for others that were asked for earlier only, so
none waits for itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from byteprophet.graph.model import Int64Array


class Message(NamedTuple):
    """A message between two ranks, each a pipeline rank and its place in it.

    ``flow``: the operation that is its transfer. ``sent_after``: the sender's operation whose
    result it is. ``asked_after``: the receiver's operation after which it asks; -1: at the start.
    """

    flow: int
    source: tuple[int, int]
    target: tuple[int, int]
    sent_after: int
    asked_after: int


def waits_in_line(messages: Sequence[Message], end_ns: Int64Array) -> list[tuple[int, int]]:
    """Pairs of transfers of which the second begins after the first.

    ``end_ns``: when operations end without that, shape (operations,).
    """
    asked_ns = {
        each.flow: int(end_ns[each.asked_after]) if each.asked_after >= 0 else 0
        for each in messages
    }
    between: dict[tuple[tuple[int, int], tuple[int, int]], list[Message]] = defaultdict(list)
    for each in messages:
        between[each.source, each.target].append(each)
    waits = []
    for each in messages:
        now_ns = asked_ns[each.flow]
        earlier = [
            other.flow
            for other in between[each.target, each.source]
            if end_ns[other.sent_after] <= now_ns and asked_ns[other.flow] < now_ns
        ]
        if earlier:
            waits.append((max(earlier, key=lambda flow: int(end_ns[flow])), each.flow))
    return waits
