"""Real ranks over collectives, whose order rank 0 decides: no rank waits for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from .shared_jobs import start, succeed

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]


def test_rank_1_may_wait_before_it_makes_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BYTEPROPHET_TRANSPORT", "collectives")
    succeed(start(2, "in_order_worker.py", out=str(tmp_path)))
