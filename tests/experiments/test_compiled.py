"""Compiled parts of a model: overlap changes no bit, and our hooks have nothing compiled again.

Once the flag by which torch's optimizers choose their code was seen by the updater thread while the
training thread compiled: replicas drifted apart. And hooks that came after the first iteration had
every part compiled twice.
"""

from __future__ import annotations

import pytest
from compiled import Ranks, run_ways

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]
LATE_FUNCTION = "function-late"  # the only one that is compiled again, until step() waits
WAYS = ("eager", "blocks", "whole-in-place", "halves-late", "blocks-in-place-late", LATE_FUNCTION)


@pytest.fixture(scope="module", params=[("byteps", "byteps"), ("dear", "collectives")])
def jobs(request: pytest.FixtureRequest) -> tuple[Ranks, Ranks]:
    """Without overlap, and with it."""
    sync, transport = request.param
    return run_ways(sync, transport, "aot_eager", WAYS)


@pytest.mark.parametrize("way", WAYS)
def test_overlap_changes_nothing(jobs: tuple[Ranks, Ranks], way: str) -> None:
    without, overlapped = jobs
    assert len({rank[way]["digest"] for rank in (*without, *overlapped)}) == 1
    assert all(rank[way]["ordered"] for rank in (*without, *overlapped))
    for one, other in zip(without, overlapped, strict=True):
        if way != LATE_FUNCTION:
            assert other[way]["compiled"] == one[way]["compiled"]
