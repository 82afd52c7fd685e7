"""Sources that are given together: none may be counted twice, or as part of another job."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.timeline.events import events_path
from byteprophet.timeline.sources import load_sources
from byteprophet.timeline.tables import SPANS

from ..diagnose.hand_made import collective_job, save_run


def test_a_table_is_refused_that_another_source_has(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for run in (one, other):
        save_run(run, collective_job())
    first, second = (events_path(one, SPANS, f"worker-{rank}") for rank in range(2))
    both = load_sources([one])
    assert [events.origin for events in load_sources([first, second])] == [
        events.origin for events in both
    ]
    for sources in ([one, other], [one, first], [first, one]):
        with pytest.raises(
            UserError, match=f"^{sources[1]}: has spans of worker-0, as {sources[0]}"
        ):
            load_sources(sources)
