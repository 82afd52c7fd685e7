"""A recorded job under a strategy of two transports: what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.job import Policy
from byteprophet.job.strategy_file import Used
from byteprophet.measure.run import Run
from byteprophet.strategy.builders import build
from byteprophet.strategy.routed import under_routes

from .jobs import mesh_job, served_job


def test_a_policy_or_setting_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    job = build("mixed", served_job([400_000_000] * 4, [400_000_000] * 2))
    used = Used(job.model, job.strategy, 0, job.policy)
    assert under_routes(Run(tmp_path), job, used, "mixed.json") == job
    for policy, says in (
        (Policy("prophet", {"bandwith_bps": 1}), "scheduler prophet has no setting 'bandwith_bps'"),
        (Policy("prohpet"), "scheduler 'prohpet': choose one of"),
    ):
        with pytest.raises(UserError, match=f"mixed.json: {says}"):
            under_routes(Run(tmp_path), job, replace(used, policy=policy), "mixed.json")


def test_a_run_without_servers_is_told_how_many_there_are_to_be(tmp_path: Path) -> None:
    """The file was made from a run with servers, and does not say it."""
    made = build("mixed", served_job([400_000_000] * 4, [400_000_000] * 2))
    used = Used(made.model, made.strategy, 0, made.policy)
    recorded = mesh_job([400_000_000] * 4)
    with pytest.raises(UserError, match="say how many there are to be: --servers"):
        under_routes(Run(tmp_path), recorded, used, "mixed.json")
    assert under_routes(Run(tmp_path), recorded, used, "mixed.json", servers=2).servers == 2
    with pytest.raises(UserError, match=r"--servers 3: mixed\.json says 2"):
        under_routes(Run(tmp_path), recorded, replace(used, servers=2), "mixed.json", servers=3)
