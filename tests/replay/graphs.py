"""Random graphs: small, with few distinct times, so that much happens at one time.

Hypothesis draws a size and a seed, which a failure names; to draw every number from it takes far
longer than to replay the graph.
"""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from byteprophet.graph import Graph, GraphBuilder
from byteprophet.graph.model import WHOLE

BYTE_PER_NS = 8_000_000_000
FAST = (None, BYTE_PER_NS, BYTE_PER_NS // 2, 3 * BYTE_PER_NS // 7, 100_003)
SLOW = (100_003, 100_003, 200_006)  # a bit per second more or less is seen, equal shares are common
WEIGHTS = (WHOLE, 2 * WHOLE, WHOLE // 2, WHOLE // 3)
POLICIES: tuple[tuple[str, dict[str, int]], ...] = (
    ("fifo", {}),
    ("p3", {"outstanding_messages": 1}),
    ("p3", {"outstanding_messages": 3}),
    ("bytescheduler", {"credit_bytes": 300}),
    ("bytescheduler-reduce", {"credit_partitions": 2}),
    ("prophet-paper", {}),
    ("prophet", {"window_max_bytes": 1000, "partition_bytes": 500}),
)

seeds = st.integers(0, 2**32 - 1)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any graph that can be replayed, with gates or without."""
    builder = GraphBuilder()
    add_random(Random(draw(seeds)), builder, draw(st.integers(1, 14)))
    return builder.freeze()


def add_random(random: Random, builder: GraphBuilder, size: int) -> list[int]:
    """Operations on devices, links, gates and pools of their own; their numbers."""
    devices = add_devices(random, builder)
    pools = [-1, builder.pool("first"), builder.pool("second")]
    gates = [
        builder.gate(f"gate {number}", *random.choice(POLICIES))
        for number in range(random.choice((0, 1, 2)))
    ]
    own: list[int] = []
    for _ in range(size):
        own.append(
            builder.add(
                f"operation {len(builder)}",
                duration_ns(random),
                device=random.choice(devices),
                after=random.choices(own, k=random.randint(0, 3)) if own else [],
                size_bytes=size_bytes(random),
                latency_ns=random.choice((0, duration_ns(random))),
                priority=random.randint(-3, 0),
                release_ns=random.choice((0, duration_ns(random))),
                pool=random.choice(pools),
                allocated_bytes=size_bytes(random),
                freed_bytes=size_bytes(random),
            )
        )
        if gates:
            own += put_behind(random, builder, own[-1], gates)
    return own


def duration_ns(random: Random) -> int:
    return random.choice((50 * random.randint(0, 4), random.randint(0, 300)))


def size_bytes(random: Random) -> int:
    return random.choice((100 * random.randint(0, 4), random.randint(0, 2000)))


def add_devices(random: Random, builder: GraphBuilder) -> list[int]:
    """Devices over links; -1, for none, is among them."""
    rates = random.choice((FAST, FAST, SLOW))
    bursts = random.choice(((0,), (0, 100, 1500)))
    burst_bytes = {
        builder.link(f"link {i}", random.choice(rates), burst): burst
        for i, burst in enumerate(random.choices(bursts, k=random.randint(1, 4)))
    }
    links = list(burst_bytes)
    weighted = random.random() < 0.5
    overlaps = random.random() < 0.5
    devices = [-1]
    for number in range(random.randint(1, 5)):
        by_priority = random.random() < 0.5
        overlap = (-1, 0)
        if overlaps and random.random() < 0.7:
            group = 2 * links[0] + random.randint(0, 1)  # not one of another part's
            overlap = (group, random.choice((0, WHOLE // 2, WHOLE, WHOLE // 7)))
        if random.random() < 0.4:
            units = random.randint(1, 3) if overlap[0] < 0 else 1
            devices.append(
                builder.serial(
                    f"device {number}", units=units, by_priority=by_priority, overlap=overlap
                )
            )
            continue
        route = random.sample(links, k=random.randint(0, min(3, len(links))))
        has_cost = bool(route) and random.random() < 0.5
        weights = [WHOLE if burst_bytes[link] else random.choice(WEIGHTS) for link in route]
        weights[:has_cost] = [WHOLE] * has_cost
        devices.append(
            builder.connection(
                f"connection {number}",
                route,
                by_priority=by_priority,
                cost_on_first_link=has_cost,
                weights=weights if weighted else (),
                overlap=overlap,
            )
        )
    return devices


def put_behind(
    random: Random, builder: GraphBuilder, operation: int, gates: list[int]
) -> list[int]:
    """The operation behind a gate, or not; what was added. Now and then it marks an iteration."""
    if random.random() < 0.2:
        builder.mark_iteration(operation, random.choice(gates))
    if random.random() < 0.3:
        return []
    acked_by = operation
    added = []
    if random.random() < 0.5:
        acked_by = builder.add("acknowledgement", duration_ns(random), after=[operation])
        added = [acked_by]
    builder.guard(
        operation,
        random.choice(gates),
        key=operation << 16,
        server=random.randint(0, 1),
        priority=random.randint(-6, -1),
        acked_by=acked_by,
    )
    return added
