"""A paced device's busy intervals, from its spans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.paced.busy import read_busy
from byteprophet.timeline.events import Events, Origin, events_path, save_events
from byteprophet.timeline.tables import SPAN, SPANS, Kind


def test_layers_that_touch_are_one_interval(tmp_path: Path) -> None:
    spans = [
        (Kind.ITERATION, 1, 40),
        (Kind.FORWARD, 1, 5),
        (Kind.FORWARD, 5, 6),
        (Kind.WAIT, 6, 9),
        (Kind.FORWARD, 9, 12),
        (Kind.BACKWARD, 20, 20),  # takes no time
        (Kind.BACKWARD, 12, 13),
        (Kind.UPDATE, 14, 30),
    ]
    rows = np.zeros(len(spans), SPAN)
    rows["kind"], rows["begin_ns"], rows["end_ns"] = zip(*spans, strict=True)
    save_events(events_path(tmp_path, SPANS, "worker-1"), Events(SPANS, Origin("w", 1), rows, {}))
    assert read_busy(tmp_path, 1) == [(1, 6), (9, 13)]
    with pytest.raises(UserError, match="has no spans of rank 0"):
        read_busy(tmp_path, 0)
