"""How ranks of a job that measures costs meet; tests/cli/test_cluster.py runs a real one."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from byteprophet.simulate.costs.collect_collectives import in_job


def test_ranks_wait_as_long_as_rank_0_may_measure() -> None:
    """A day of products is allowed, and all else takes its time, too."""
    waits: list[timedelta] = []

    def join(_backend: str, timeout: timedelta) -> None:
        waits.append(timeout)

    distributed: Any = SimpleNamespace(init_process_group=join, destroy_process_group=lambda: None)
    with in_job(SimpleNamespace(distributed=distributed), "cpu", 86_400) as joined:
        assert joined is distributed
    assert waits == [timedelta(days=1, hours=1)]
