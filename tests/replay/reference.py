"""A graph replayed slowly: the model of prophet/graph/graph.h, written a second time.

Shares nothing with the engine but the policies. Everything is looked at anew at every step: who is
ready from all dependencies, rates from all flows, the next time from all that is pending. Rates are
in bits per second, work in bits times nanoseconds per second, in Python's integers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from byteprophet import _core
from byteprophet.graph import Connection, Graph, SerialDevice
from byteprophet.graph.model import WHOLE

WORK_PER_BYTE = 8_000_000_000
COST_BPS = 2**40  # at which a link without limit bears costs


@dataclass
class Operation:
    number: int
    waits_for: list[int]
    # waits, offered, queued, cost, begins, burst, bytes, runs, slowable, over
    state: str = "waits"
    ready: int = -1
    entered: int = -1  # at its device
    start: int = -1
    end: int = -1  # while it runs: when it will
    left: int = 0  # work of a phase on links, or of what may be slowed
    rest: int = 0  # work behind a burst
    order: tuple[int, ...] = ()  # in its device's queue


@dataclass
class Gate:
    policy: _core.Policy
    calls: list[tuple[int, int, int, str, int]] = field(default_factory=list)
    changed: bool = False
    ask_at: int | None = None
    pending: dict[int, int] = field(default_factory=dict)  # key -> row


class Reference:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        before, after = (ends.tolist() for ends in graph.edges())
        self.operations = [
            Operation(i, [b for b, a in zip(before, after, strict=True) if a == i])
            for i in range(len(graph))
        ]
        self.gates = []
        for gate in graph.gates:
            policy = _core.Policy(gate.policy, dict(gate.settings))
            if gate.ready_times:
                policy.set_ready_times(gate.ready_times)
            self.gates.append(Gate(policy))
        self.rows = {int(operation): row for row, operation in enumerate(graph.gated.operation)}
        self.sent = [-1] * len(self.rows)
        self.acked = [False] * len(self.rows)
        self.sends = 0
        self.link_busy = [0] * len(graph.links)
        self.saved = [link.burst_bytes * WORK_PER_BYTE for link in graph.links]
        self.now = 0

    # What is asked again and again.

    def heard(self, number: int) -> int | None:
        """When the end of an operation is known elsewhere; None: it has not ended."""
        operation = self.operations[number]
        if operation.state != "over":
            return None
        return operation.end + int(self.graph.latency_ns[number])

    def ready_at(self, operation: Operation) -> int | None:
        times = [self.heard(number) for number in operation.waits_for]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            return None
        return max([int(self.graph.release_ns[operation.number]), *known])

    def device(self, operation: Operation) -> Any:
        number = int(self.graph.device[operation.number])
        return None if number < 0 else self.graph.devices[number]

    def on(self, device: int, *states: str) -> list[Operation]:
        return [
            operation
            for operation in self.operations
            if self.graph.device[operation.number] == device and operation.state in states
        ]

    def links(self, operation: Operation) -> list[int]:
        """Those that the phase under way has to share."""
        route = self.device(operation).route
        if operation.state == "cost":
            return [route[0]]
        limited = [link for link in route if self.graph.links[link].capacity_bps]
        if operation.state == "burst":
            return [link for link in limited if not self.graph.links[link].burst_bytes]
        return limited

    def crosses(self, operation: Operation, link: int) -> bool:
        """Whether its phase uses the link."""
        route, on = self.device(operation).route, self.graph.links[link]
        if operation.state == "cost":
            return bool(link == route[0])
        if operation.state == "burst" and on.capacity_bps and on.burst_bytes:
            return False
        return link in route

    def rates(self) -> dict[int, int]:
        flows = {
            operation.number: self.links(operation)
            for operation in self.operations
            if operation.state in ("cost", "burst", "bytes")
        }
        left = [(link.capacity_bps or COST_BPS) * WHOLE for link in self.graph.links]
        rates: dict[int, int] = {}
        while len(rates) < len(flows):
            shares = []
            for link in range(len(left)):
                open_flows = [f for f, on in flows.items() if link in on and f not in rates]
                if open_flows:
                    weight = sum(self.weight(flow, link) for flow in open_flows)
                    shares.append((left[link] // weight, link, open_flows))
            share, _, fixed = min(shares)
            for flow in fixed:
                rates[flow] = share
                for link in flows[flow]:
                    left[link] -= share * self.weight(flow, link)
        return rates

    def weight(self, flow: int, link: int) -> int:
        device = self.device(self.operations[flow])
        return device.weights[device.route.index(link)] if device.weights else WHOLE

    def is_slowed(self, operation: Operation) -> bool:
        """Whether an operation of the other kind is under way in its device's group."""
        own = self.device(operation)
        others = (other for other in self.operations if other.start >= 0 and other.state != "over")
        return own.overlap_group >= 0 and any(
            device is not None
            and device.overlap_group == own.overlap_group
            and isinstance(device, SerialDevice) != isinstance(own, SerialDevice)
            for device in map(self.device, others)
        )

    def paces(self) -> dict[int, int]:
        """How fast what is left of operations becomes less."""
        paces = self.rates()
        for flow, rate in paces.items():
            if self.is_slowed(self.operations[flow]):
                slowdown = self.device(self.operations[flow]).overlap_slowdown
                paces[flow] = max(1, rate * WHOLE // (WHOLE + slowdown))
        for operation in self.operations:
            if operation.state == "slowable":
                slowdown = (
                    0 if self.is_slowed(operation) else self.device(operation).overlap_slowdown
                )
                paces[operation.number] = WHOLE + slowdown
        return paces

    # What happens.

    def begin(self, operation: Operation) -> None:
        number = operation.number
        operation.start = self.now
        for mark, gate in zip(self.graph.marks.operation, self.graph.marks.gate, strict=True):
            if mark == number:
                self.gates[gate].calls.append((1, number, 0, "iteration", number))
                self.gates[gate].changed = True
        device = self.device(operation)
        duration = int(self.graph.duration_ns[number])
        if isinstance(device, Connection) and device.cost_on_first_link and duration:
            operation.state = "cost"
            first = self.graph.links[device.route[0]]
            operation.left = duration * (first.capacity_bps or COST_BPS)
        elif isinstance(device, SerialDevice) and device.overlap_group >= 0 and duration:
            operation.state = "slowable"
            operation.left = duration * (WHOLE + device.overlap_slowdown)
        else:
            operation.state = "runs"
            operation.end = self.now + duration

    def begin_bytes(self, operation: Operation) -> None:
        operation.state = "begins"
        operation.left = int(self.graph.size_bytes[operation.number]) * WORK_PER_BYTE
        if operation.left == 0 or not self.links(operation):
            self.finish(operation)

    def anything_on_links(self) -> bool:
        """What links have saved passes them at once, in whole bytes, of which all get as many."""
        beginning = [operation for operation in self.operations if operation.state == "begins"]
        bursts = self.bursts_of(beginning)
        for operation in sorted(beginning, key=lambda one: int(self.graph.device[one.number])):
            limited, saving = self.links(operation), self.saving(operation)
            at_once = bursts[operation.number]
            if at_once and len(saving) < len(limited):
                operation.rest = operation.left - at_once
                operation.left = at_once
                operation.state = "burst"
                continue
            operation.left -= at_once
            operation.state = "bytes"
        return bool(beginning)

    def saving(self, operation: Operation) -> list[int]:
        return [link for link in self.links(operation) if self.graph.links[link].burst_bytes]

    def bursts_of(self, beginning: list[Operation]) -> dict[int, int]:
        """By number, the work of each flow that passes at once, taken byte by byte in rounds."""
        found = {one.number: 0 for one in beginning}
        open_flows = [one for one in beginning if self.saving(one)]
        while open_flows:
            users = Counter(link for one in open_flows for link in self.saving(one))
            for one in open_flows:
                found[one.number] += WORK_PER_BYTE
            for link, count in users.items():
                self.saved[link] -= count * WORK_PER_BYTE
            if any(work < 0 for work in self.saved) or any(
                found[one.number] > one.left for one in open_flows
            ):  # that byte was too many for some: these get no more, and the others try again
                for one in open_flows:
                    found[one.number] -= WORK_PER_BYTE
                for link, count in users.items():
                    self.saved[link] += count * WORK_PER_BYTE
                open_flows = [
                    one
                    for one in open_flows
                    if found[one.number] + WORK_PER_BYTE <= one.left
                    and all(
                        self.saved[link] >= users[link] * WORK_PER_BYTE for link in self.saving(one)
                    )
                ]
        return found

    def finish(self, operation: Operation) -> None:
        operation.state = "over"
        operation.end = self.now

    def enter(self, operation: Operation, order: int) -> None:
        operation.entered = self.now
        device = self.device(operation)
        if device is None:
            self.begin(operation)
            return
        operation.state = "queued"
        priority = int(self.graph.priority[operation.number]) if device.by_priority else 0
        operation.order = (-priority, self.now, order)

    def anything_without_choice(self) -> bool:
        for operation in self.operations:
            if operation.state == "runs" and operation.end == self.now:
                if isinstance(self.device(operation), Connection):
                    self.begin_bytes(operation)
                else:
                    self.finish(operation)
                return True
            if operation.state == "cost" and operation.left == 0:
                self.begin_bytes(operation)
                return True
            if operation.state == "burst" and operation.left == 0:
                operation.left, operation.state = operation.rest, "bytes"
                return True
            if operation.state in ("bytes", "slowable") and operation.left == 0:
                self.finish(operation)
                return True
            if operation.state == "waits" and self.ready_at(operation) == self.now:
                self.make_ready(operation)
                return True
        for row, number in enumerate(self.graph.gated.acked_by):
            if not self.acked[row] and self.heard(number) == self.now:
                self.acked[row] = True
                gate = self.gates[self.graph.gated.gate[row]]
                gate.calls.append((0, int(self.graph.gated.operation[row]), 0, "acked", row))
                gate.changed = True
                return True
        for gate in self.gates:
            if gate.ask_at == self.now and not gate.changed:
                gate.changed = True
                return True
        return False

    def make_ready(self, operation: Operation) -> None:
        operation.ready = self.now
        row = self.rows.get(operation.number)
        if row is None:
            self.enter(operation, operation.number)
            return
        operation.state = "offered"
        gate = self.gates[self.graph.gated.gate[row]]
        gate.calls.append((1, operation.number, 1, "ready", row))
        gate.changed = True

    def anything_on_devices(self) -> bool:
        began = False
        for number, device in enumerate(self.graph.devices):
            units = device.units if isinstance(device, SerialDevice) else 1
            under_way = ("runs", "slowable", "cost", "begins", "burst", "bytes")
            while len(self.on(number, *under_way)) < units:
                queue = self.on(number, "queued")
                if not queue:
                    break
                self.begin(min(queue, key=lambda operation: operation.order))
                began = True
        return began

    def anything_of_gates(self) -> bool:
        gated = self.graph.gated
        for gate in self.gates:
            if not gate.changed:
                continue
            gate.changed = False
            gate.ask_at = None
            calls, gate.calls = sorted(gate.calls), []
            for *_, what, row in calls:
                if what == "iteration":
                    gate.policy.on_iteration(self.now)
                    continue
                key = int(gated.key[row])
                if what == "acked":
                    gate.policy.on_acked(key, self.now)
                    continue
                gate.pending[key] = row
                size = int(self.graph.size_bytes[gated.operation[row]])
                gate.policy.on_ready(
                    key, int(gated.server[row]), int(gated.priority[row]), size, self.now
                )
            while (decision := gate.policy.next(self.now))[0] == "send":
                row = gate.pending.pop(decision[1])
                self.sent[row] = self.now
                self.enter(self.operations[gated.operation[row]], len(self.graph) + self.sends)
                self.sends += 1
            if decision[0] == "wait_until":
                gate.ask_at = max(decision[1], self.now + 1)
            return True
        return False

    def advance(self) -> None:
        rates, paces = self.rates(), self.paces()
        times = [self.now - (-self.operations[one].left // pace) for one, pace in paces.items()]
        times += [operation.end for operation in self.operations if operation.state == "runs"]
        times += [gate.ask_at for gate in self.gates if gate.ask_at is not None]
        for operation in self.operations:
            ready = self.ready_at(operation) if operation.state == "waits" else None
            if ready is not None:
                times.append(ready)
        for row, number in enumerate(self.graph.gated.acked_by):
            heard = self.heard(number)
            if heard is not None and not self.acked[row]:
                times.append(heard)
        later = min(times)
        assert later > self.now
        for link in range(len(self.link_busy)):
            crossed = any(self.crosses(self.operations[flow], link) for flow in rates)
            self.link_busy[link] += (later - self.now) * crossed
            if not crossed:
                grown = self.saved[link] + (later - self.now) * (
                    self.graph.links[link].capacity_bps or 0
                )
                self.saved[link] = min(self.graph.links[link].burst_bytes * WORK_PER_BYTE, grown)
        for number, pace in paces.items():
            operation = self.operations[number]
            operation.left = max(0, operation.left - pace * (later - self.now))
        self.now = later

    def run(self) -> Reference:
        while any(operation.state != "over" for operation in self.operations):
            if not (
                self.anything_without_choice()
                or self.anything_on_devices()
                or self.anything_on_links()
                or self.anything_of_gates()
            ):
                self.advance()
        return self

    def peaks(self) -> list[int]:
        """At every time at which anything changes: what has started less what has ended."""
        memory = self.graph.memory
        times = {operation.start for operation in self.operations}
        return [
            max(
                sum(
                    int(memory.allocated_bytes[operation.number]) * (operation.start <= time)
                    - int(memory.freed_bytes[operation.number]) * (operation.end <= time)
                    for operation in self.operations
                    if memory.pool[operation.number] == pool
                )
                for time in times
            )
            for pool in range(len(self.graph.pools))
        ]
