"""A parameter-server job as plain data: what is computed when, on which network, by which policy.

What a graph is built from (``ps_graph.py``): measured, worker by worker and iteration by iteration,
or assumed. Changing it is asking "what if".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from byteprophet.graph.model import Int64Array


@dataclass(frozen=True)
class Compute:
    """What workers compute. Shapes: W workers, I iterations, L tensors in forward order.

    ``forward_ns`` (W, I, L): of the layers that need tensor l and not yet l + 1, waits left out.
    ``ready_ns`` (W, I, L): when the gradient is offered, from the begin of backward.
    ``backward_ns`` (W, I): from the begin of backward to that of the next iteration.
    ``update_ns`` (W, I, L): of the parameter, in the updater's thread, once its sum is there.
    """

    forward_ns: Int64Array
    ready_ns: Int64Array
    backward_ns: Int64Array
    update_ns: Int64Array


@dataclass(frozen=True)
class Network:
    """Links and what passes them. Rates are of payload; 0: not limited.

    ``worker_bps``: of each worker's link, towards the servers; ``down_bps``: in the other direction
    (none: the same).
    ``message_cost_ns``: of the sender's link, per message with bytes. ``delay_ns``: one way.
    ``sum_ns_per_byte``: of one of a server's ``sum_threads`` threads, per push.
    ``hand_over_ns``: of a worker's one thread that sends, per push that its policy lets go.
    ``request_lags_ns``: from there until the pull is requested, in the connection of the pushes,
    behind those that were handed over meanwhile, all equally frequent; none: it arrives with its
    push.
    ``ack_lag_ns``: beyond the delay, until a worker knows that a push is there.
    ``burst_bytes``: of each direction of each worker's link, what passes at once after a pause.
    ``answers_bytes``: a server hands answers to a worker's connection, the most urgent first, while
    less than this and what the link carries in 1 ms is on its way; what was handed over cannot be
    overtaken, and acknowledgements wait behind it. 0: answers are handed over one at a time, and
    acknowledgements wait for nothing.
    """

    worker_bps: tuple[int, ...]
    server_bps: tuple[int, ...]
    message_cost_ns: int = 0
    delay_ns: int = 0
    sum_ns_per_byte: float = 0.0
    sum_threads: int = 4
    down_bps: tuple[int, ...] = ()
    hand_over_ns: int = 0
    request_lags_ns: tuple[int, ...] = ()
    ack_lag_ns: int = 0
    burst_bytes: int = 0
    answers_bytes: int = 0


@dataclass(frozen=True)
class PsJob:
    """A job. ``scheduler``: a policy or "stock", with all its ``settings``.

    ``ready_times``: what its policy is told of its tensors, as ``Gate.ready_times``.
    ``numbers``: of tensors in BytePS, by which it finds partitions' servers; none: their places.
    """

    tensors: tuple[str, ...]
    size_bytes: tuple[int, ...]
    compute: Compute
    network: Network
    scheduler: str
    partition_bytes: int
    settings: Mapping[str, int] = field(default_factory=dict)
    ready_times: tuple[tuple[int, int, int, int], ...] = ()
    numbers: tuple[int, ...] = ()

    @property
    def slowest_bps(self) -> tuple[int, ...]:
        """Of each worker's link, the slower direction; 0: neither is limited."""
        down_bps = self.network.down_bps or self.network.worker_bps
        return tuple(
            min((rate for rate in pair if rate), default=0)
            for pair in zip(self.network.worker_bps, down_bps, strict=True)
        )

    @property
    def workers(self) -> int:
        """How many."""
        return len(self.network.worker_bps)

    @property
    def servers(self) -> int:
        """How many."""
        return len(self.network.server_bps)

    @property
    def title(self) -> str:
        """What it is, in words."""
        return f"{self.scheduler}, {self.workers} workers, {self.servers} server(s)"

    @property
    def iterations(self) -> int:
        """How many are computed."""
        return int(self.compute.backward_ns.shape[1])
