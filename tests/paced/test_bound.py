"""Which jobs have one bound for all of their iterations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from byteprophet.paced.bound import why_no_bound
from byteprophet.paced.worker_config import WorkerConfig
from byteprophet.runtime_settings import STRATEGY

WORKER = WorkerConfig("resnet18", "fifo", 1, 1)


@pytest.mark.parametrize(
    ("config", "worker", "why"),
    [
        ({}, WORKER, ""),
        ({}, None, ""),
        ({"steps": [], "environment": {STRATEGY: ""}}, replace(WORKER, strategies=("", "")), ""),
        ({"steps": ["1gbit@3i"]}, WORKER, "links change during the job"),
        ({"environment": {STRATEGY: "a.json"}}, None, "a strategy changes the job"),
        ({}, replace(WORKER, strategies=("", "a.json")), "a strategy changes the job"),
        (
            {},
            replace(WORKER, next_batch_size=8, next_batch_at=3),
            "the batch changes during the job",
        ),
    ],
)
def test_what_changes_a_job_leaves_no_bound(
    config: dict[str, Any], worker: WorkerConfig | None, why: str
) -> None:
    assert why_no_bound(config, worker) == why
