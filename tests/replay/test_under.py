"""A recorded job under a strategy from elsewhere: what does not fit is refused, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.errors import UserError
from byteprophet.job import Model, Parameter, Policy
from byteprophet.job.strategy import DDP, Keys, Region
from byteprophet.job.strategy_file import Used
from byteprophet.replay.under import first_difference, under

from ..strategy.jobs import mesh_job, served_job

RATE_BPS = 400_000_000


def test_what_does_not_fit_is_refused() -> None:
    mesh, served = mesh_job([RATE_BPS] * 3), served_job([RATE_BPS] * 2, [RATE_BPS])
    of_mesh = Used(mesh.model, mesh.strategy, 0)
    of_served = Used(served.model, served.strategy, 0, served.policy)
    for job, used, says in (
        (mesh, of_served, "'byteps' has servers, and the recorded job has no servers"),
        (served, of_mesh, "'allreduce' has no servers, and the recorded job has servers"),
        (
            mesh,
            replace(of_mesh, strategy=replace(mesh.strategy, runtime=DDP)),
            "'ddp' has another transport than the recorded 'allreduce'",
        ),
        (served, replace(of_served, policy=None), "has a policy, and this strategy has none"),
        (
            served,
            replace(of_served, policy=Policy("prophet", {"bandwith_bps": 1})),
            "a.json: scheduler prophet has no setting 'bandwith_bps'",
        ),
        (
            served,
            replace(of_served, policy=Policy("prohpet", {})),
            "a.json: scheduler 'prohpet': choose one of",
        ),
        (
            served,
            replace(of_served, strategy=replace(served.strategy, keys=(Keys("in", 0, (1,)),))),
            "places 'in' on server 1, and the job has 1 server",
        ),
        (
            mesh,
            replace(of_mesh, strategy=replace(mesh.strategy, owners=(1, 1))),
            "weights for 2 ranks, and the job has 3",
        ),
        (
            mesh,
            replace(of_mesh, strategy=replace(mesh.strategy, regions=(Region(("in",), True),))),
            "regions differs from the recorded job",
        ),
        (
            mesh,
            replace(of_mesh, strategy=replace(mesh.strategy, reduce_dtype="bf16")),
            "reduce_dtype differs from the recorded job",
        ),
    ):
        with pytest.raises(UserError, match=says):
            under(job, used, "a.json")
    assert under(mesh, of_mesh, "a.json").strategy == mesh.strategy
    assert under(served, of_served, "a.json") == served


models = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 2)), unique_by=lambda x: x[0])


@given(models, models)
def test_a_difference_is_found_if_there_is_one(
    first: list[tuple[str, int]], second: list[tuple[str, int]]
) -> None:
    one, other = (
        Model(tuple(Parameter(name, size) for name, size in each)) for each in (first, second)
    )
    assert (first_difference(one, other) == "") == (first == second)
