"""The cluster of a job: hosts with one link each, and the cost of messages beside their bytes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Host:
    """A worker's or server's link. Rates are of payload, in bits per second; 0: not limited.

    ``burst_bytes`` pass at once after a pause, in each direction, as through a token bucket.
    """

    up_bps: int = 0
    down_bps: int = 0
    burst_bytes: int = 0

    def slowed_by(self, host_ns_per_byte: float) -> Host:
        """A link on which every byte takes so much longer."""
        return replace(
            self,
            up_bps=_slowed_bps(self.up_bps, host_ns_per_byte),
            down_bps=_slowed_bps(self.down_bps, host_ns_per_byte),
        )

    @property
    def slower_bps(self) -> int:
        """The rate of the slower direction; 0: neither is limited."""
        return slower_of_bps(self.up_bps, self.down_bps)


def slower_of_bps(*rates_bps: int) -> int:
    """The lowest of rates of which 0 is no limit; 0: none is limited."""
    return min((rate_bps for rate_bps in rates_bps if rate_bps), default=0)


def _slowed_bps(rate_bps: int, ns_per_byte: float) -> int:
    if not ns_per_byte:
        return rate_bps
    return round(8e9 / ((8e9 / rate_bps if rate_bps else 0) + ns_per_byte))


@dataclass(frozen=True)
class Compressing:
    """What compressing the gradient of ``parameter`` takes on a worker.

    ``before_ns``: until its form can be sent. ``after_ns``: from when all forms are there until the
    average is.
    """

    parameter: str
    before_ns: int
    after_ns: int


@dataclass(frozen=True)
class Costs:
    """What messages and hosts cost beside the bytes on the links.

    ``delay_ns``: one way, from the end of a message to when its receiver goes on.
    ``message_cost_ns``: time of the sender's link, per message with bytes.
    ``cast_ns_per_byte``: what a worker takes to cast a gradient to the type in which it travels,
    and again to cast the average back, if the job's times do not have that already.
    ``keep_ns_per_byte``: what it takes to add a gradient to one that is kept, likewise. Both are
    per byte of the gradient in its own type.

    ``compressing``: of gradients that travel compressed; others take none of a worker's time.

    Without servers. ``collectives_at_once``: gloo's threads in PyTorch, each of which works on one
    collective. ``host_ns_per_byte``: what a byte takes beside its time on the link, since hosts add
    up and copy. ``start_lag_ns``: from when the last gradient of a bucket is ready until its
    communication begins. ``update_lag_ns``: from when averages have arrived until the updater goes
    on. ``bucket_ns``: what a worker computes to hand a bucket over, in its backward pass.
    ``processor_ns_per_byte``: the processor time of a byte that travels from one rank to another,
    or between a worker and a server, of both together. It counts only where ``Cluster.processors``
    says which cores are shared.
    ``message_processor_ns``: likewise, of a message of gloo, of both ranks together and beside its
    bytes.
    ``turn_ns``: for how long threads compute before one of gloo's, which has woken up, gets a core
    of theirs. It counts where a machine has more workers than cores.

    With servers. ``sum_ns_per_byte``: of one of a server's ``sum_threads`` threads, per push.
    ``hand_over_ns``: of a worker's sending thread, per push that its policy lets go.
    ``request_lags_ns``: from there until the pull is requested, all equally frequent; none: the
    request arrives with its push. ``ack_lag_ns``: beyond the delay, until a worker knows that its
    push has arrived. ``standing_ns``: for how long threads compute before a server that shares
    their cores gets one, when an iteration's first gradient is ready, all equally frequent; none:
    it has one at once. ``answer_cost_ns``: of the server's link, per answer, beyond
    ``message_cost_ns``. ``answers_bytes``: a server hands answers to a worker's connection, the
    most urgent first, while less than this and what the link carries in 1 ms is in flight; 0: one
    at a time, and acknowledgements wait for nothing.
    """

    delay_ns: int = 0
    message_cost_ns: int = 0
    cast_ns_per_byte: float = 0.0
    keep_ns_per_byte: float = 0.0
    compressing: tuple[Compressing, ...] = ()
    collectives_at_once: int = 2
    host_ns_per_byte: float = 0.0
    start_lag_ns: int = 0
    update_lag_ns: int = 0
    bucket_ns: int = 0
    processor_ns_per_byte: float = 0.0
    message_processor_ns: int = 0
    turn_ns: int = 0
    sum_ns_per_byte: float = 0.0
    sum_threads: int = 4
    hand_over_ns: int = 0
    request_lags_ns: tuple[int, ...] = ()
    ack_lag_ns: int = 0
    standing_ns: tuple[int, ...] = ()
    answer_cost_ns: int = 0
    answers_bytes: int = 0


@dataclass(frozen=True)
class Processors:
    """The cores of a machine on which several workers run.

    ``workers``: their ranks. ``cores``: how many they may use together. ``servers``: the servers
    that use these cores, too.
    """

    workers: tuple[int, ...]
    cores: float
    servers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """Workers (ranks) and servers, one host each. Every worker and server has a link of its own.

    ``mesh_costs``: if the job has two transports, the costs of messages among the ranks; ``costs``
    are then those of messages to servers. None: both are equal.

    ``processors``: the cores of machines; each worker is on one of them. The job's times are then
    processor time, and computing, updates and messages share the cores. Empty: the
    times are what computing took beside all else that ran, and nothing slows it down further.
    """

    workers: tuple[Host, ...]
    servers: tuple[Host, ...] = ()
    costs: Costs = field(default_factory=Costs)
    mesh_costs: Costs | None = None
    processors: tuple[Processors, ...] = ()

    def with_workers(self, workers: int) -> Cluster:
        """The same cluster with so many workers; links and machines of those recorded repeat."""
        recorded = self.workers
        machine_of = {
            rank: number for number, each in enumerate(self.processors) for rank in each.workers
        }
        on: dict[tuple[int, int], list[int]] = {}
        for rank in range(workers if machine_of else 0):
            again, of = divmod(rank, len(recorded))
            on.setdefault((again, machine_of[of]), []).append(rank)
        return replace(
            self,
            workers=tuple(recorded[rank % len(recorded)] for rank in range(workers)),
            processors=tuple(
                Processors(
                    tuple(ranks),
                    self.processors[machine].cores,
                    () if again else self.processors[machine].servers,
                )
                for (again, machine), ranks in on.items()
            ),
        )

    def with_computing(self, scale: float) -> Cluster:
        """The same cluster whose workers' computations take ``scale`` times as long."""

        def scaled(costs: Costs) -> Costs:
            compressing = tuple(
                replace(
                    each,
                    before_ns=round(scale * each.before_ns),
                    after_ns=round(scale * each.after_ns),
                )
                for each in costs.compressing
            )
            return replace(costs, compressing=compressing, bucket_ns=round(scale * costs.bucket_ns))

        of_mesh = None if self.mesh_costs is None else scaled(self.mesh_costs)
        return replace(self, costs=scaled(self.costs), mesh_costs=of_mesh)

    def with_rate(self, payload_bps: int, burst_bytes: int) -> Cluster:
        """The same cluster with worker links of ``payload_bps`` in both directions, and a burst."""
        links = {"up_bps": payload_bps, "down_bps": payload_bps, "burst_bytes": burst_bytes}
        return replace(self, workers=tuple(replace(host, **links) for host in self.workers))
