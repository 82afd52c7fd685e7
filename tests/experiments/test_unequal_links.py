"""Which variants run on unequal links, and what is made of their times; no job runs here."""

from __future__ import annotations

from statistics import median

import pytest
import unequal_links
from unequal_links import UNIFORM, WEIGHTED, WORKERS, cases_of, gains, line

from byteprophet.bench.case import job_of
from byteprophet.bench.result import bound_ns
from byteprophet.bound import all_reduced_bytes
from byteprophet.errors import UserError
from byteprophet.workload import load


@pytest.mark.parametrize(("slow", "weights"), [(1, (1, 1, 1, 0)), (2, (1, 1, 0, 0))])
def test_variants_differ_in_runtimes_and_owners(slow: int, weights: tuple[int, ...]) -> None:
    cell = {"model": "resnet50", "slow": slow, "ratio": 2.0}
    cases = cases_of(cell, 4)
    assert [case.runtime for case in cases] == [*UNIFORM, *WEIGHTED]
    assert [case.weights for case in cases] == [()] * 4 + [weights] * 2
    workload = load("resnet50").scaled(cases[0].compute_ns or 0)
    rates_bps = [host.up_bps for host in job_of(cases[0], workload).cluster.workers]
    assert rates_bps == pytest.approx([rates_bps[0]] * (4 - slow) + [rates_bps[0] / 2] * slow)
    moved = all_reduced_bytes(workload.size_bytes, WORKERS)
    compute_ns = workload.forward_ns + workload.backward_ns
    assert moved * 8e9 / rates_bps[0] == pytest.approx(2 * compute_ns, rel=1e-3)
    # The bound is that of the slow links, and the same for all.
    assert {bound_ns(workload, case) for case in cases} == {bound_ns(workload, cases[0])}
    assert bound_ns(workload, cases[0]) >= 2 * workload.size_bytes * 8e9 / rates_bps[0]


def test_the_best_of_both_sides_are_compared_round_by_round() -> None:
    times_ns = [[90, 91, 92], [80, 85, 81], [81, 81, 82], [99, 99, 99], [60, 61, 62], [50, 60, 54]]
    row = {
        "model": "m",
        "slow": 1,
        "ratio": 1.0,
        "bound_ns": 40,
        "equal_results": True,
        "variants": [
            {"runtime": runtime, "owners": owners, "rounds_ns": rounds_ns}
            for runtime, owners, rounds_ns in zip(
                [*UNIFORM, *WEIGHTED], [None] * 4 + [[1, 1, 1, 0]] * 2, times_ns, strict=True
            )
        ],
    }
    assert gains(row) == [80 / 50, 85 / 60, 81 / 54]
    assert f"weights {median(gains(row)):.3f} times as fast (1.417 to 1.600)" in line(row)
    assert "dear-planned owners 1.350" in line(row)
    assert "PARAMETERS DIFFER" in line({**row, "equal_results": False})


@pytest.mark.parametrize("arguments", [["--slow", "4"], ["--ratios", "0"], ["--ratios", "x"]])
def test_what_is_no_cell_is_refused(arguments: list[str]) -> None:
    with pytest.raises(UserError, match=arguments[0]):
        unequal_links.main(arguments)
