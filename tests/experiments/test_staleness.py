"""Which delays are compared, and what is made of their times; no job runs here."""

from __future__ import annotations

from pathlib import Path

import pytest
import staleness
from staleness import cases_of, lines

from byteprophet.bench.case import job_of
from byteprophet.bound import bound_ns
from byteprophet.errors import UserError
from byteprophet.workload import load

WORD = "bert.embeddings.word_embeddings.weight"


def test_variants_differ_in_their_delays(tmp_path: Path) -> None:
    arguments = ["--out", str(tmp_path), "--runtimes", "dear-planned"]
    options = staleness._parse(arguments)
    cases = cases_of({"model": "bert-base", "ratio": 1.0}, options)
    assert [*cases] == [f"dear-planned, {which} delayed" for which in ("none", "some", "all")]
    none, some, every = cases.values()
    assert none.staleness == ()
    assert [(delay.parameter, delay.steps) for delay in some.staleness] == [(WORD, 1)]
    workload = load("bert-base").scaled(none.compute_ns or 0)
    assert len(every.staleness) == len(workload.tensors)
    bounds_ns = [bound_ns(job_of(case, workload)) for case in (none, some, every)]
    compute_ns = workload.forward_ns + workload.backward_ns
    assert bounds_ns[0] > 1.1 * compute_ns
    # The link is as busy as the ranks; rates are whole bits per second.
    assert bounds_ns[2] == pytest.approx(compute_ns, rel=1e-3)


def test_times_are_over_the_compute_and_the_bound() -> None:
    variant = {"name": "x", "late": 1, "bound_ns": 110, "is_exact": True, "rounds_ns": [120, 110]}
    row = {"model": "m", "ratio": 1.0, "compute_ns": 100, "variants": [variant]}
    (_, text) = lines(row)
    assert text.endswith("1.150 (1.100 to 1.200), 1.045")
    wrong = {**row, "variants": [{**variant, "is_exact": False}]}
    assert "PARAMETERS ARE WRONG" in lines(wrong)[1]


@pytest.mark.parametrize(
    "arguments", [["--ratios", "0"], ["--ratios", "x"], ["--ranks", "1"], ["--runtimes", "ddp"]]
)
def test_what_is_no_cell_is_refused(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=arguments[0]):
        staleness.main([*arguments, "--out", str(tmp_path)])
