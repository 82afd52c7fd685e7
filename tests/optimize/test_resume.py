"""Searches and rounds that were stopped go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_jobs import random_job, region_costs_of

from byteprophet.job.strategy import Region
from byteprophet.job.strategy_file import Used, strategy_path, write_strategy
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.passes.runtime import Runtime
from byteprophet.optimize.passes.tensor_fusion import TensorFusion
from byteprophet.optimize.resume import Resume
from byteprophet.optimize.rounds import Rounds
from byteprophet.optimize.search import Candidate, search

from .test_compile import learned

PASSES = (Runtime(), TensorFusion())


def test_a_search_that_is_stopped_goes_on(tmp_path: Path) -> None:
    job = random_job(3, 12)
    resume = Resume(tmp_path)
    assert resume.left([job], PASSES) is None
    seen: list[Candidate] = []

    def stop_at_the_second(best: Candidate, spent: float) -> None:
        resume.keep(best, job)
        seen.append(best)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(job, PASSES, budget_s=600.0, progress=stop_at_the_second)
    left = Resume(tmp_path).left([job], PASSES)
    assert left is not None
    assert Evaluator()(left.move.job).iteration_ns == seen[-1].iteration_ns
    assert left.decisions == seen[-1].decisions
    found = search(job, [], budget_s=600.0, left=left)
    assert found.best.iteration_ns == seen[-1].iteration_ns
    assert found.best.decisions == seen[-1].decisions

    # Without the file, or with that of another strategy, nobody knows what led to it.
    decisions = tmp_path / "decisions.json"
    decisions.write_text(decisions.read_text().replace('"strategy": "', '"strategy": "0'))
    left = Resume(tmp_path).left([job], PASSES)
    assert left is not None
    found = search(job, [], budget_s=600.0, left=left)
    assert found.best.iteration_ns == seen[-1].iteration_ns
    assert [each.by for each in found.best.decisions] == ["earlier search"]
    Resume(tmp_path).end()
    assert Resume(tmp_path).left([job], PASSES) is None


def test_the_result_of_another_job_or_without_leave_is_left_alone(tmp_path: Path) -> None:
    job = random_job(3, 5)
    path = strategy_path(tmp_path)
    write_strategy(path, Used(job.model, job.strategy, 0))
    assert Resume(tmp_path).left([job], PASSES) is not None
    assert Resume(tmp_path).left([random_job(4, 5)], PASSES) is None
    compiled = replace(job.strategy, regions=(Region(("p0", "p1"), compiled=True),))
    write_strategy(path, Used(job.model, compiled, 0))
    assert Resume(tmp_path).left([job], PASSES) is None
    left = Resume(tmp_path).left([job], [learned(job, region_costs_of(job, 3))])
    assert left is not None
    assert left.move.job.strategy == compiled
    path.write_text("{")
    assert Resume(tmp_path).left([job], PASSES) is None


def test_finished_rounds_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    of = {"as recorded": "", "optimised": "abc"}
    first = Rounds(path, of)
    first.add("as recorded", np.array([3, 4]))
    again = Rounds(path, of)
    assert again.done("as recorded") == 1
    assert again.done("optimised") == 0
    again.add("as recorded", np.array([5]))
    for rounds, times_ns in ((1, [[3, 4]]), (2, [[3, 4], [5]])):
        kept = Rounds(path, of).iteration_ns("as recorded", rounds)
        assert [run.tolist() for run in kept] == times_ns
    assert Rounds(path, {**of, "optimised": "def"}).done("as recorded") == 0
    path.write_text(path.read_text()[:30])
    assert Rounds(path, of).done("as recorded") == 0
