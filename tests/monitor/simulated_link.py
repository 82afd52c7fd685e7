"""A link in Python with known rate, delay and message cost: makes the transfers that a job would.

Messages to several servers share the link evenly; to one server they go first in, first out. The
link's rate is piecewise constant. A sender keeps a window of messages in flight per server.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from byteprophet.timeline.tables import TRANSFER, Transfers

S = 1_000_000_000


@dataclass
class Link:
    """``rates``: (from when, bits per second), the first from 0. Times are nanoseconds."""

    rates: Sequence[tuple[int, float]]
    delay_ns: int = 200_000
    cost_ns: int = 0
    down_bps: float = 1e11
    stalls: Sequence[tuple[int, int]] = ()  # the receiver sees nothing from, until
    noise: Callable[[], float] = field(default=lambda: 0.0)  # ns, added to what is seen

    def bytes_per_ns(self, now: float) -> float:
        return [rate for start, rate in self.rates if start <= now][-1] / 8e9

    def next_change(self, now: float) -> float:
        return min((start for start, _ in self.rates if start > now), default=float("inf"))

    def seen(self, finished: float) -> float:
        """When the sender sees a message that was through at ``finished``."""
        seen = finished + self.delay_ns + self.noise()
        for start, end in self.stalls:
            if start <= seen < end:
                seen = end
        return seen


@dataclass
class _Message:
    size: int
    server: int
    iteration: int
    ready: float
    sent: float = 0.0
    left: float = 0.0  # bytes
    cost_left: float = 0.0
    acked: float = 0.0
    pulled: float = 0.0


def run(
    link: Link,
    iterations: Sequence[tuple[int, Sequence[tuple[int, int]]]],
    window: int = 1000,
) -> Transfers:
    """The transfers of ``iterations``: (pause before it, [(size, server), ...]) each.

    An iteration starts when the last one's messages are all back, plus the pause. A message's
    answer comes as soon as the message is there, one after the other at ``down_bps``.
    """
    done: list[_Message] = []
    now = 0.0
    for number, (pause_ns, messages) in enumerate(iterations):
        now += pause_ns
        queues: dict[int, deque[_Message]] = {}
        for size, server in messages:
            queues.setdefault(server, deque()).append(_Message(size, server, number, now))
        finished = _drain(link, now, queues, window)
        for message in sorted(finished, key=lambda message: message.acked):
            now = max(now, message.acked - link.delay_ns) + message.size * 8e9 / link.down_bps
            message.pulled = now + link.delay_ns
        done += finished
        now += link.delay_ns
    done.sort(key=lambda message: message.acked)
    out = np.zeros(len(done), TRANSFER)
    for row, message in zip(out, done, strict=True):
        row["key"] = 1  # any: only its first transfer is another
        row["size_bytes"], row["server"] = message.size, message.server
        row["iteration"] = message.iteration
        row["ready_ns"], row["sent_ns"] = message.ready, message.sent
        row["acked_ns"], row["pulled_ns"] = message.acked, message.pulled
    return out


def _drain(
    link: Link, now: float, queues: dict[int, deque[_Message]], window: int
) -> list[_Message]:
    wire: dict[int, deque[_Message]] = {server: deque() for server in queues}
    acks: list[_Message] = []  # through, their acknowledgements under way
    done: list[_Message] = []
    last_seen = dict.fromkeys(queues, 0.0)
    while any(queues.values()) or any(wire.values()) or acks:
        for message in [m for m in acks if m.acked <= now]:
            acks.remove(message)
            done.append(message)
        for server, queue in queues.items():
            in_flight = len(wire[server]) + sum(m.server == server for m in acks)
            while queue and in_flight < window:
                message = queue.popleft()
                message.sent, message.left = now, message.size
                message.cost_left = link.cost_ns
                wire[server].append(message)
                in_flight += 1
        heads = [queue[0] for queue in wire.values() if queue]
        share = link.bytes_per_ns(now) / max(1, len(heads))
        ends = [m.cost_left if m.cost_left > 0 else m.left / share for m in heads]
        until = min(
            [
                link.next_change(now),
                *(now + end for end in ends),
                *(m.acked for m in acks),
            ]
        )
        for message in heads:
            if message.cost_left > 0:
                message.cost_left -= until - now
                if message.cost_left < 1e-3:
                    message.cost_left = 0
            else:
                message.left -= (until - now) * share
            if message.cost_left == 0 and message.left < 1e-3:
                wire[message.server].popleft()
                message.acked = max(link.seen(until), last_seen[message.server], until)
                last_seen[message.server] = message.acked
                acks.append(message)
        now = until
    return done


def bursts(
    random_: random.Random, size_bytes: int, sizes: Sequence[int], servers: int = 1
) -> list[tuple[int, int]]:
    """Messages of random ``sizes`` to random servers, ``size_bytes`` in all."""
    made: list[tuple[int, int]] = []
    while size_bytes > 0:
        size = min(size_bytes, random_.choice(sizes))
        made.append((size, random_.randrange(servers)))
        size_bytes -= size
    return made
