"""Random routings, with which the search for strategies is compared."""

from __future__ import annotations

import numpy as np
import pytest
from random_routings import busiest_ns, sampled_routings
from strategy_search import KNOWN, case_of, resized, resources_of

from byteprophet.job.owners import Owners
from byteprophet.strategy.search.bases import bases_of_workload
from byteprophet.strategy.search.engine import Routing
from byteprophet.strategy.search.units import Units
from byteprophet.workload import load


@pytest.mark.parametrize("constraints", [False, True])
def test_sampled_routings_are_different_and_of_two_transports(constraints: bool) -> None:
    workload = resized(load("resnet50"), 24_000_000)
    resources = resources_of(case_of(KNOWN[0]), workload.size_bytes, 10**9)
    job = bases_of_workload(workload, resources).routed
    assert job is not None
    units = Units.of(job.model, 40)
    routings = sampled_routings(job, units, 10, seed=2, constraints=constraints)
    assert len({routing.key for routing in routings}) == 10
    none = np.zeros(len(units), np.bool_)
    pure_ns = busiest_ns(job, units, Routing(none, Owners.equal(4)))
    for routing in routings:
        assert routing.served.any()
        assert not routing.served.all()
        assert not constraints or busiest_ns(job, units, routing) <= pure_ns
        assert constraints or not any(route.is_cut for route in units.routes(routing.served))
