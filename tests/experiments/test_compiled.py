"""Compiled parts of a model: overlap changes no bit, and our hooks have nothing compiled again.

The backend runs what torch has traced as it is. Which frames are traced, and when, does not depend
on it; ``tests/torch/regions/test_jobs.py`` has overlap with code that torch's own has compiled.

Once the flag by which torch's optimizers choose their code was seen by the updater thread while the
training thread compiled: replicas drifted apart. And hooks that came after the first iteration had
every part compiled twice.
"""

from __future__ import annotations

import pytest
from compiled import Ranks, run_ways

from ..thorough import THOROUGH, asked

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]
LATE_FUNCTION = "function-late"  # the only one that is compiled again, until step() waits
WAYS = {
    "byteps": ("eager", "blocks-in-place-late", LATE_FUNCTION),
    "dear": (
        "eager",
        "blocks",
        "whole-in-place",
        "halves-late",
        "blocks-in-place-late",
        LATE_FUNCTION,
    ),
}
"""What hooks do to compiled parts does not depend on the synchroniser: one of them has all ways."""
OTHERS = {
    "byteps": ("eager",),
    "dear": ("blocks-in-place-late", LATE_FUNCTION),
}
"""The other synchroniser has these, too: thorough."""
Jobs = dict[str, tuple[Ranks, Ranks]]


@pytest.fixture(scope="module")
def jobs(request: pytest.FixtureRequest) -> Jobs:
    """Per synchroniser, without overlap and with it; of one job, which imports the compiler."""
    ways = {sync: [each["way"] for each in asked(request, sync=sync)] for sync in WAYS}
    return run_ways({sync: each for sync, each in ways.items() if each}, "collectives", "eager")


@pytest.mark.parametrize(
    ("sync", "way"),
    [
        pytest.param(sync, way, marks=THOROUGH if way in OTHERS[sync] else ())
        for sync in WAYS
        for way in WAYS[sync]
    ],
)
def test_overlap_changes_nothing(jobs: Jobs, sync: str, way: str) -> None:
    without, overlapped = jobs[sync]
    assert len({rank[way]["digest"] for rank in (*without, *overlapped)}) == 1
    assert all(rank[way]["ordered"] for rank in (*without, *overlapped))
    for one, other in zip(without, overlapped, strict=True):
        if way != LATE_FUNCTION:
            assert other[way]["compiled"] == one[way]["compiled"]
