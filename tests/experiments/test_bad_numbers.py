"""Numbers with which a script would fail in its midst are refused before anything runs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from byteprophet.errors import UserError


@pytest.mark.parametrize(
    ("script", "arguments", "complaint"),
    [
        ("ddp_buckets", "--caps x", "--caps 'x': must be numbers"),
        ("ddp_buckets", "--ratio inf", "--ratio inf: must be at least 0.01"),
        ("gains", "--trials 0", "--trials 0: must be at least 1"),
        ("hybrid", "--slowed 0", "--slowed 0: must be at least 1"),
        ("message_costs", "--ranks two", "--ranks 'two': must be numbers from 2"),
        ("message_costs", "--ranks 1", "--ranks '1': must be numbers from 2"),
        ("message_costs", "--rate fast", "--rate 'fast' is not a rate"),
        ("mixed", "--slowed 0", "--slowed 0: must be at least 1"),
        ("mixed", "--workers 1", "--workers 1: must be at least 2"),
        ("staleness", "--slowed 0", "--slowed 0: must be at least 1"),
        ("strategy_search", "--rounds 0", "--rounds 0: must be at least 1"),
        ("strategy_search", "--budget-s nan", "--budget-s nan: must be at least 0.01"),
        ("theorem_one", "--rounds 0", "--rounds 0: must be at least 1"),
        ("unequal_links", "--slowed 0", "--slowed 0: must be at least 1"),
    ],
)
def test_refused(
    script: str,
    arguments: str,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=complaint):
        import_module(script).main(arguments.split())
    assert not list(tmp_path.iterdir())
