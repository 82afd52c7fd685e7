"""Several strategies in one real job: each of them trains as it would alone."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet.bench import Case, Plan
from byteprophet.bench.case import strategy_case
from byteprophet.bench.in_turn import job_key, run_in_turn
from byteprophet.bench.result import read_results
from byteprophet.errors import UserError
from byteprophet.job.strategy_file import write_strategy
from byteprophet.paced.check import expected_parameters, parameters_sha256
from byteprophet.strategy.builders import build
from byteprophet.strategy.resources import HostResources, Resources
from byteprophet.strategy.search.bases import bases_of_workload
from byteprophet.workload import Tensor, Workload, to_toml

from ..namespaces import why_not_permitted

WORKERS, RATE_BPS = 2, 200_000_000
MODEL = Workload(
    "small",
    4,
    tuple(
        Tensor(f"layer{number}.weight", size, 4_000_000, 8_000_000)
        for number, size in enumerate((400_000, 600_000, 100_000, 1_000_000))
    ),
)
PLAN = Plan((Case("", "prophet", RATE_BPS),), 2, 1, 2, idle_s=0.0)
WITH_SERVERS, ON_MESH = ("mixed", "mixed-paced"), ("dear-planned", "allreduce")


def cases(directory: Path) -> dict[str, Case]:
    """A case under what each of some builders makes."""
    (directory / "small.toml").write_text(to_toml(MODEL))
    hosts = [
        HostResources(f"{role}-{number}", *own, RATE_BPS, RATE_BPS)
        for role, own, count in (("worker", (1, 0), WORKERS), ("server", (0, 1), 1))
        for number in range(count)
    ]
    bases = bases_of_workload(MODEL, Resources(tuple(hosts)))
    assert bases.served is not None
    assert bases.routed is not None
    rates = dict.fromkeys(range(WORKERS), RATE_BPS)
    case = Case(str(directory / "small.toml"), "prophet", None, WORKERS, 1)
    case = replace(case, worker_bandwidth_bps=rates, server_bandwidth_bps={0: RATE_BPS})
    found = {}
    for names, base in (
        (WITH_SERVERS, bases.routed),
        (ON_MESH, bases.mesh),
        (("partitioned-ps",), bases.served),
    ):
        for name in names:
            path = directory / f"{name}.json"
            write_strategy(path, bases.used(build(name, base)))
            found[name] = strategy_case(case, path)
    return found


def test_what_is_fixed_for_a_job_keeps_cases_apart(tmp_path: Path) -> None:
    found = cases(tmp_path)
    keys = {name: job_key(case) for name, case in found.items()}
    assert keys["mixed"] == keys["mixed-paced"]
    assert keys["dear-planned"] == keys["allreduce"]
    # ``mixed`` keeps one partition size, and ``partitioned-ps`` adapts it: settings of the policy.
    assert len({keys["mixed"], keys["dear-planned"], keys["partitioned-ps"]}) == 3
    alone = replace(found["dear-planned"], strategy=None)  # the configuration names its runtime
    assert job_key(alone) != keys["dear-planned"]
    with pytest.raises(UserError, match="different jobs"):
        run_in_turn([found["mixed"], found["allreduce"]], PLAN, MODEL, tmp_path, "trials")


@pytest.mark.job
@pytest.mark.skipif(why_not_permitted() is not None, reason=str(why_not_permitted()))
@pytest.mark.parametrize("names", [WITH_SERVERS, ON_MESH])
def test_each_strategy_trains_by_the_averages(names: tuple[str, ...], tmp_path: Path) -> None:
    found = cases(tmp_path)
    runs = tmp_path / "runs"
    times = run_in_turn([found[name] for name in names], PLAN, MODEL, runs, "trials")
    assert [each.shape for each in times] == [(PLAN.iterations,)] * len(names)
    assert all((each > MODEL.forward_ns + MODEL.backward_ns).all() for each in times)
    (run,) = runs.iterdir()
    digest = hashlib.sha256()
    for number in range(len(names)):
        tensors = (replace(each, name=f"{number}.{each.name}") for each in MODEL.tensors)
        own = replace(MODEL, tensors=tuple(tensors))
        digest.update(parameters_sha256(expected_parameters(own, WORKERS, PLAN.updates)).encode())
    assert {each.parameters_sha256 for each in read_results(run, WORKERS)} == {digest.hexdigest()}
