"""Lanes as a trace: whole, by Perfetto's rules, to the nanosecond."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np

from byteprophet.timeline.perfetto_lanes import write_lanes
from byteprophet.timeline.role_lanes import Lane

from .perfetto_rules import broken_rules, read_trace


def lane(role: str, label: str, *slices: tuple[int, int, str]) -> Lane:
    begins, ends, names = zip(*slices, strict=True)
    sizes = np.arange(len(slices), dtype=np.int64)
    return Lane(role, label, np.array(begins), np.array(ends), ("push",) * len(names), names, sizes)


LANES = [
    lane("worker-0", "computes", (7, 11, "b"), (0, 7, 'a "quoted" \\ name'), (11, 11, "")),
    lane("worker-0", "pushes", (0, 1_000_003, "one"), (3, 9, "two"), (9, 12, "three")),
    lane("server-0", "sums", (5, 6, "one")),
]


def test_slices_are_where_they_belong(tmp_path: Path) -> None:
    write_lanes(tmp_path / "trace.json", LANES)
    trace = read_trace(tmp_path / "trace.json")
    assert broken_rules(trace) == []
    events = trace["traceEvents"]
    named = {
        (what, event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if (what := event["name"]) in ("process_name", "thread_name")
    }
    processes = {pid: name for (what, pid, _), name in named.items() if what == "process_name"}
    found = sorted(
        (
            processes[event["pid"]],
            named["thread_name", event["pid"], event["tid"]],
            int(event["ts"] * 1000),
            int((event["ts"] + event["dur"]) * 1000),
            event["name"],
            event["args"]["size_bytes"],
        )
        for event in events
        if event["ph"] == "X"
    )
    assert found == [
        ("server-0", "sums", 5, 6, "one", 0),
        ("worker-0", "computes", 0, 7, 'a "quoted" \\ name', 1),
        ("worker-0", "computes", 7, 11, "b", 0),
        ("worker-0", "computes", 11, 11, "?", 2),
        ("worker-0", "pushes", 0, 1_000_003, "one", 0),
        ("worker-0", "pushes 2", 3, 9, "two", 1),
        ("worker-0", "pushes 2", 9, 12, "three", 2),
    ]
    assert all(isinstance(event["ts"], Decimal | int) for event in events)


def test_what_is_seen_between_two_moments_is_cut_there() -> None:
    seen = LANES[1].within(4, 10)
    assert list(zip(seen.begin_ns.tolist(), seen.end_ns.tolist(), seen.name, strict=True)) == [
        (0, 6, "one"), (0, 5, "two"), (5, 6, "three"),
    ]  # fmt: skip
