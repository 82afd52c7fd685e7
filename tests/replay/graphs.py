"""Random graphs: small, with few distinct times, so that much happens at one time."""

from __future__ import annotations

from hypothesis import strategies as st

from byteprophet.graph import Graph, GraphBuilder

BYTE_PER_NS = 8_000_000_000

durations = st.one_of(st.integers(0, 4).map(lambda units: 50 * units), st.integers(0, 300))
sizes = st.one_of(st.integers(0, 4).map(lambda units: 100 * units), st.integers(0, 2000))
rates = st.sampled_from([None, BYTE_PER_NS, BYTE_PER_NS // 2, 3 * BYTE_PER_NS // 7, 100_003])
POLICIES = (
    ("fifo", {}),
    ("p3", {"outstanding_messages": 1}),
    ("p3", {"outstanding_messages": 3}),
    ("bytescheduler", {"credit_bytes": 300}),
    ("bytescheduler-reduce", {"credit_partitions": 2}),
    ("prophet-paper", {}),
    ("prophet", {"window_max_bytes": 1000, "partition_bytes": 500}),
)


@st.composite
def graphs(draw: st.DrawFn, gated: bool | None = None) -> Graph:
    """Any graph that can be replayed; ``gated``: with, without (None: either) gates."""
    builder = GraphBuilder()
    add_random(draw, builder, draw(st.booleans()) if gated is None else gated)
    return builder.freeze()


def add_random(draw: st.DrawFn, builder: GraphBuilder, gated: bool) -> list[int]:
    """Operations on devices, links, gates and pools of their own; their numbers."""
    devices = add_devices(draw, builder)
    pools = [-1, builder.pool("first"), builder.pool("second")]
    gates = []
    if gated:
        for number in range(draw(st.integers(1, 2))):
            policy, settings = draw(st.sampled_from(POLICIES))
            gates.append(builder.gate(f"gate {number}", policy, settings))
    own: list[int] = []
    for _ in range(draw(st.integers(1, 14))):
        after = draw(st.lists(st.sampled_from(own), max_size=3)) if own else []
        own.append(
            builder.add(
                f"operation {len(builder)}",
                draw(durations),
                device=draw(st.sampled_from(devices)),
                after=after,
                size_bytes=draw(sizes),
                latency_ns=draw(st.one_of(st.just(0), durations)),
                priority=draw(st.integers(-3, 0)),
                release_ns=draw(st.one_of(st.just(0), durations)),
                pool=draw(st.sampled_from(pools)),
                allocated_bytes=draw(sizes),
                freed_bytes=draw(sizes),
            )
        )
        if gates:
            own += put_behind(draw, builder, own[-1], gates)
    return own


def add_devices(draw: st.DrawFn, builder: GraphBuilder) -> list[int]:
    """Devices over links; -1, for none, is among them."""
    links = [builder.link(f"link {i}", draw(rates)) for i in range(draw(st.integers(1, 4)))]
    devices = [-1]
    for number in range(draw(st.integers(1, 5))):
        by_priority = draw(st.booleans())
        if draw(st.booleans()):
            units = draw(st.integers(1, 3))
            devices.append(builder.serial(f"device {number}", units=units, by_priority=by_priority))
            continue
        route = draw(st.lists(st.sampled_from(links), max_size=3, unique=True))
        devices.append(
            builder.connection(
                f"connection {number}",
                route,
                by_priority=by_priority,
                cost_on_first_link=bool(route) and draw(st.booleans()),
            )
        )
    return devices


def put_behind(
    draw: st.DrawFn, builder: GraphBuilder, operation: int, gates: list[int]
) -> list[int]:
    """The operation behind a gate, or not; what was added. Now and then it marks an iteration."""
    if draw(st.integers(0, 5)) == 0:
        builder.mark_iteration(operation, draw(st.sampled_from(gates)))
    gate = draw(st.sampled_from([None, *gates]))
    if gate is None:
        return []
    acked_by = operation
    added = []
    if draw(st.booleans()):
        acked_by = builder.add("acknowledgement", draw(durations), after=[operation])
        added = [acked_by]
    builder.guard(
        operation,
        gate,
        key=operation << 16,
        server=draw(st.integers(0, 1)),
        priority=draw(st.integers(-6, -1)),
        acked_by=acked_by,
    )
    return added
