"""Time that was worked: the time between two moments, less the waits in it."""

from __future__ import annotations

import numpy as np

from byteprophet.measure.computation import Computation
from byteprophet.timeline.events import Events, Origin
from byteprophet.timeline.tables import SPAN, SPANS, Kind


def test_what_lies_between_two_backward_passes_belongs_to_the_last_parameter() -> None:
    """Two passes in an iteration: only the first forward pass waits for parameters."""
    names = {0: "a.weight", 1: "b.weight", 2: "a", 3: "b", 4: ""}
    spans = [
        (Kind.FORWARD, 2, 0, 10),
        (Kind.FORWARD, 3, 10, 30),
        (Kind.BACKWARD, 1, 30, 45),
        (Kind.BACKWARD, 0, 45, 60),
        (Kind.FORWARD, 2, 62, 70),  # 2 for keeping
        (Kind.FORWARD, 3, 70, 95),
        (Kind.BACKWARD, 1, 95, 105),
        (Kind.BACKWARD, 0, 105, 118),
        (Kind.ITERATION, 4, 0, 120),
    ]
    rows = np.zeros(len(spans), SPAN)
    for column, values in zip(
        ("kind", "name", "begin_ns", "end_ns"), zip(*spans, strict=True), strict=True
    ):
        rows[column] = values
    rows["iteration"] = 7
    rows["size_bytes"] = 4
    events = Events(SPANS, Origin("worker-0", 0), rows, names)
    found = Computation(events, ["a.weight", "b.weight"], [7])
    assert found.forward_ns.tolist() == [[10, 20 + (62 - 30) + 8 + 25]]
    assert found.ready_ns.tolist() == [[118 - 95, 105 - 95]]
    assert found.backward_ns.tolist() == [120 - 95]
