"""A simulated job, slowly: the model of prophet/engine/job.h, written a second time.

Shares nothing with the engine but the policies. Everything is looked at anew at every step: rates
from all flows, the next time from all that is pending, forward layer by layer. Rates are in bits
per second, work in bits times nanoseconds per second, as the model has them, in Python's integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from byteprophet import _core

WORK_PER_BYTE = 8_000_000_000
COST_BPS = 2**40  # at which a link without limit bears costs
PUSH, ANSWER = 0, 1
ARRIVED, REQUESTED, SUMMED, ACKED, PULLED, READY, ENDED, ASK = range(8)


@dataclass(frozen=True)
class SlowJob:
    """One entry per tensor, in forward order; a partition is its size and its server."""

    partitions: tuple[tuple[tuple[int, int], ...], ...]
    ready_ns: tuple[int, ...]
    forward_ns: tuple[int, ...]
    backward_ns: int
    iterations: int
    worker_bps: tuple[int, ...]
    server_bps: tuple[int, ...]
    delay_ns: int = 0
    message_cost_ns: int = 0
    sum_bps: int = 0
    sum_threads: int = 1
    answer_by_priority: bool = False
    stock_transport: bool = False
    barrier: bool = False
    known_profile: bool = False

    def arrays(self) -> dict[str, Any]:
        """What ``_core.simulate`` takes, arrays as lists."""
        flat = [partition for tensor in self.partitions for partition in tensor]
        counts = [len(tensor) for tensor in self.partitions]
        first = [sum(counts[:tensor]) for tensor in range(self.tensors + 1)]
        same = (
            "ready_ns forward_ns backward_ns iterations delay_ns message_cost_ns sum_bps"
            " sum_threads answer_by_priority stock_transport barrier known_profile"
        )
        return {name: getattr(self, name) for name in same.split()} | {
            "first_partition": first,
            "size_bytes": [size for size, _ in flat],
            "server": [server for _, server in flat],
            "worker_bandwidth_bps": self.worker_bps,
            "server_bandwidth_bps": self.server_bps,
        }

    @property
    def tensors(self) -> int:
        """How many there are."""
        return len(self.partitions)


@dataclass
class Message:
    kind: str  # push, request, ack, answer
    key: int
    size: int = 0
    cost_ns: int = 0
    urgency: int = 0
    phase: str = "waits"  # cost, bytes
    left: int = 0


@dataclass
class Worker:
    policy: _core.Policy
    starts: list[int] = field(default_factory=list)
    backward_starts: list[int] = field(default_factory=list)
    back: set[int] = field(default_factory=set)  # keys of the iteration that forward waits for
    layer: int | None = None
    layer_ends: int = 0
    asks: bool = False
    ask_at: int | None = None
    # iteration, key: ready, sent, acked, pulled
    transfers: dict[tuple[int, int], list[int]] = field(default_factory=dict)


class Reference:
    def __init__(self, job: SlowJob, scheduler: str, settings: dict[str, int]) -> None:
        self.job = job
        self.now = 0
        self.events: list[tuple[int, int, int, int]] = []  # time, kind, worker, key
        self.queues: dict[tuple[int, int, int], list[Message]] = {}  # direction, sender, receiver
        self.workers = [Worker(_core.Policy(scheduler, settings)) for _ in job.worker_bps]
        self.summed: dict[int, list[int]] = {}
        self.waiting: dict[int, set[int]] = {}
        self.there: set[tuple[int, int]] = set()  # worker, key: a sum that waits for its request
        self.threads: dict[tuple[int, int], int] = {}
        self.order = {
            key: number
            for number, key in enumerate(
                tensor << 16 | part
                for tensor, parts in enumerate(job.partitions)
                for part in range(len(parts))
            )
        }
        if job.known_profile:
            first = min(job.ready_ns, default=0)
            times = [(i, -1 - i, ready - first, 0) for i, ready in enumerate(job.ready_ns)]
            for worker in self.workers:
                worker.policy.set_ready_times(times)

    def run(self) -> list[Worker]:
        for number in range(len(self.workers)):
            self.begin(number)
        while True:
            ends = dict(self.phase_ends())
            times = [*ends.values(), *(event[0] for event in self.events)]
            asking = [n for n, worker in enumerate(self.workers) if worker.asks]
            if asking and min(times, default=self.now + 1) > self.now:
                self.ask(asking[0])
                continue
            if not times:
                return self.workers
            self.pass_time(min(times) - self.now)
            due = sorted(flow for flow, end in ends.items() if end == self.now)
            if due:
                self.end_phase(due[0])
            else:
                event = min(self.events, key=lambda e: (e[0], e[1], e[2], self.order.get(e[3], 0)))
                self.events.remove(event)
                self.handle(*event[1:])

    # Links.

    def rate_of(self, direction: int, end: str, host: int) -> int:
        pushing = (direction == PUSH) == (end == "sender")
        return (self.job.worker_bps if pushing else self.job.server_bps)[host]

    def constraints(
        self, flow: tuple[int, int, int], message: Message
    ) -> Iterator[tuple[int, int, int]]:
        """The links that ``message`` uses: their order (senders first), host and rate."""
        direction, sender, receiver = flow
        up = self.rate_of(direction, "sender", sender)
        down = self.rate_of(direction, "receiver", receiver)
        if up or message.phase == "cost":
            yield 0, sender, up or COST_BPS
        if down and message.phase == "bytes":
            yield 1, receiver, down

    def rates(self, direction: int) -> dict[tuple[int, int, int], int]:
        """Of the flows that something limits: all grow alike until a link is full."""
        users: dict[tuple[int, int, int], set[tuple[int, int, int]]] = {}
        for flow, queue in self.queues.items():
            if queue and flow[0] == direction:
                for link in self.constraints(flow, queue[0]):
                    users.setdefault(link, set()).add(flow)
        fixed: dict[tuple[int, int, int], int] = {}
        while users:
            shares = {
                link: (link[2] - sum(fixed.get(flow, 0) for flow in self.on(direction, link)))
                // len(flows)
                for link, flows in users.items()
            }
            full = min(users, key=lambda link: (shares[link], link))
            for flow in users[full]:
                fixed[flow] = shares[full]
            users = {
                link: flows - fixed.keys() for link, flows in users.items() if flows - fixed.keys()
            }
        return fixed

    def on(self, direction: int, link: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        return [
            flow
            for flow, queue in self.queues.items()
            if queue and flow[0] == direction and link in self.constraints(flow, queue[0])
        ]

    def all_rates(self) -> dict[tuple[int, int, int], int]:
        return self.rates(PUSH) | self.rates(ANSWER)

    def phase_ends(self) -> Iterator[tuple[tuple[int, int, int], int]]:
        rates = self.all_rates()
        for flow, queue in self.queues.items():
            if queue:
                rate = rates.get(flow)
                wait = -(-queue[0].left // rate) if rate else 0
                yield flow, self.now + wait

    def pass_time(self, duration: int) -> None:
        for flow, rate in self.all_rates().items():
            message = self.queues[flow][0]
            message.left = max(0, message.left - rate * duration)
        self.now += duration

    def send(self, flow: tuple[int, int, int], message: Message) -> None:
        queue = self.queues.setdefault(flow, [])
        place = len(queue)
        while place > 1 and queue[place - 1].urgency > message.urgency:
            place -= 1
        queue.insert(place, message)
        if len(queue) == 1:
            self.begin_message(flow)

    def begin_message(self, flow: tuple[int, int, int]) -> None:
        message = self.queues[flow][0]
        if message.cost_ns:
            message.phase = "cost"
            message.left = message.cost_ns * (self.rate_of(flow[0], "sender", flow[1]) or COST_BPS)
        else:
            self.begin_bytes(message)

    def begin_bytes(self, message: Message) -> None:
        message.phase, message.left = "bytes", message.size * WORK_PER_BYTE

    def end_phase(self, flow: tuple[int, int, int]) -> None:
        queue = self.queues[flow]
        if queue[0].phase == "cost":
            self.begin_bytes(queue[0])
            return
        message = queue.pop(0)
        if queue:
            self.begin_message(flow)
        kind = {"push": ARRIVED, "request": REQUESTED, "ack": ACKED, "answer": PULLED}[message.kind]
        worker = flow[1] if flow[0] == PUSH else flow[2]
        self.events.append((self.now + self.job.delay_ns, kind, worker, message.key))

    # Servers.

    def partition(self, key: int) -> tuple[int, int]:
        return self.job.partitions[key >> 16][key & 0xFFFF]

    def handle(self, kind: int, number: int, key: int) -> None:
        worker = self.workers[number]
        if kind == ARRIVED:
            self.arrived(number, key)
        elif kind == REQUESTED:
            self.requested(number, key)
        elif kind == SUMMED:
            self.sum_up(number, key)
        elif kind == ACKED:
            worker.policy.on_acked(key, self.now)
            worker.asks = True
            worker.transfers[len(worker.backward_starts) - 1, key][2] = self.now
            if self.job.stock_transport:
                self.send((PUSH, number, self.partition(key)[1]), Message("request", key))
        elif kind == PULLED:
            worker.transfers[len(worker.backward_starts) - 1, key].append(self.now)
            worker.back.add(key)
            self.go_forward(number)
        elif kind == READY:
            self.make_ready(number, key)
        elif kind == ENDED:
            worker.policy.on_iteration(self.now)
            worker.asks = True
            self.begin(number)
        elif worker.ask_at == self.now:
            worker.asks = True

    def arrived(self, number: int, key: int) -> None:
        job, (size, server) = self.job, self.partition(key)
        if job.stock_transport:
            self.send((ANSWER, server, number), Message("ack", key))
        else:
            self.events.append((self.now + job.delay_ns, ACKED, number, key))
            self.requested(number, key)
        if not job.sum_bps:
            self.sum_up(number, key)
            return
        thread = server, self.order[key] % job.sum_threads
        begins = max(self.now, self.threads.get(thread, 0))
        self.threads[thread] = begins + -(-size * WORK_PER_BYTE // job.sum_bps)
        if self.threads[thread] == self.now:
            self.sum_up(number, key)
        else:
            self.events.append((self.threads[thread], SUMMED, number, key))

    def requested(self, number: int, key: int) -> None:
        if (number, key) in self.there:
            self.there.remove((number, key))
            self.answer(number, key)
        else:
            self.waiting.setdefault(key, set()).add(number)

    def sum_up(self, number: int, key: int) -> None:
        self.summed.setdefault(key, []).append(number)
        if len(self.summed[key]) < len(self.workers):
            return
        assert sorted(self.summed.pop(key)) == list(range(len(self.workers)))
        waiting = self.waiting.pop(key, set())
        for other in range(len(self.workers)):
            if other in waiting:
                self.answer(other, key)
            else:
                self.there.add((other, key))

    def answer(self, number: int, key: int) -> None:
        size, server = self.partition(key)
        urgency = key >> 16 if self.job.answer_by_priority else 0
        message = Message("answer", key, size, self.job.message_cost_ns, urgency)
        self.send((ANSWER, server, number), message)

    # Workers.

    def begin(self, number: int) -> None:
        worker = self.workers[number]
        worker.starts.append(self.now)
        if len(worker.starts) > self.job.iterations:
            return
        worker.layer, worker.layer_ends = 0, self.now
        self.go_forward(number)

    def go_forward(self, number: int) -> None:
        worker, job = self.workers[number], self.job
        if worker.layer is None:
            return
        missing = set(self.order) - worker.back if worker.backward_starts else set()
        while worker.layer < job.tensors:
            if any(job.barrier or key >> 16 == worker.layer for key in missing):
                return
            worker.layer_ends = max(worker.layer_ends, self.now) + job.forward_ns[worker.layer]
            worker.layer += 1
        worker.layer = None
        worker.back = set()
        start = worker.layer_ends
        worker.backward_starts.append(start)
        self.events.append((start + job.backward_ns, ENDED, number, 0))
        for ready_ns in set(job.ready_ns):
            self.events.append((start + ready_ns, READY, number, ready_ns))

    def make_ready(self, number: int, ready_ns: int) -> None:
        worker, job = self.workers[number], self.job
        iteration = len(worker.backward_starts) - 1
        for tensor in reversed(range(job.tensors)):
            if job.ready_ns[tensor] != ready_ns:
                continue
            for part, (size, server) in enumerate(job.partitions[tensor]):
                key = tensor << 16 | part
                worker.policy.on_ready(key, server, -1 - tensor, size, self.now)
                worker.transfers[iteration, key] = [self.now, -1, -1]
        worker.asks = True

    def ask(self, number: int) -> None:
        worker = self.workers[number]
        worker.asks = False
        while (decision := worker.policy.next(self.now))[0] == "send":
            key = decision[1]
            worker.transfers[len(worker.backward_starts) - 1, key][1] = self.now
            size, server = self.partition(key)
            message = Message("push", key, size, self.job.message_cost_ns)
            self.send((PUSH, number, server), message)
        worker.ask_at = None
        if decision[0] == "wait_until":
            worker.ask_at = max(decision[1], self.now + 1)
            if all(event[:3] != (worker.ask_at, ASK, number) for event in self.events):
                self.events.append((worker.ask_at, ASK, number, 0))
