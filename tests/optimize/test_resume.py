"""Searches and rounds that were stopped go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_jobs import random_job, region_costs_of, with_runtime

from byteprophet.errors import UserError
from byteprophet.job.strategy import Region
from byteprophet.job.strategy_file import Used, strategy_path, write_strategy
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.passes.runtime import Runtime
from byteprophet.optimize.passes.tensor_fusion import TensorFusion
from byteprophet.optimize.recorded import used_by
from byteprophet.optimize.resume import Resume
from byteprophet.optimize.rounds import Rounds
from byteprophet.optimize.search import Candidate, Decision, search

from .test_compile import learned

PASSES = (Runtime(), TensorFusion())


def test_a_search_that_is_stopped_goes_on(tmp_path: Path) -> None:
    job = random_job(3, 12)
    resume = Resume(tmp_path)
    assert resume.left([job], PASSES, asked=False) == []
    seen: list[Candidate] = []

    def stop_at_the_second(best: Candidate, spent: float) -> None:
        resume.keep(best, job)
        seen.append(best)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(job, PASSES, budget_s=600.0, progress=stop_at_the_second)
    (left,) = Resume(tmp_path).left([job], PASSES, asked=False)
    assert Evaluator()(left.move.job).iteration_ns == seen[-1].iteration_ns
    assert left.decisions == seen[-1].decisions
    found = search(job, [], budget_s=600.0, left=[left])
    assert found.best.iteration_ns == seen[-1].iteration_ns
    assert found.best.decisions == seen[-1].decisions

    # Without the file, or with that of another strategy, nobody knows what led to it.
    decisions = tmp_path / "decisions.partial.json"
    decisions.write_text(decisions.read_text().replace('"strategy": "', '"strategy": "0'))
    (left,) = Resume(tmp_path).left([job], PASSES, asked=False)
    found = search(job, [], budget_s=600.0, left=[left])
    assert found.best.iteration_ns == seen[-1].iteration_ns
    assert [each.by for each in found.best.decisions] == ["earlier search"]
    assert Resume(tmp_path).end(None, ()) is None
    assert Resume(tmp_path).left([job], PASSES, asked=False) == []


def test_a_search_that_was_stopped_behind_a_better_one_hides_nothing(tmp_path: Path) -> None:
    """Both are starts, each with the decisions that led to it."""
    job = with_runtime(random_job(3, 8), "allreduce", 100_000_000)
    best = search(job, PASSES, budget_s=600.0).best
    worse = search(job, [TensorFusion()], budget_s=1e-6).best
    Resume(tmp_path).end(used_by(best.job, job), best.decisions)
    Resume(tmp_path).keep(worse, job)
    left = Resume(tmp_path).left([job], PASSES, asked=True)
    assert [each.decisions for each in left] == [worse.decisions, best.decisions]
    found = search(job, [], budget_s=600.0, left=left)
    assert found.best.iteration_ns == best.iteration_ns < worse.iteration_ns
    assert found.best.decisions == best.decisions


def _stopped(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_strategy_of_the_user_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = random_job(3, 12)
    Resume(tmp_path).refuse_others()
    found = search(job, PASSES, budget_s=600.0).best
    used = used_by(found.job, job)
    assert Resume(tmp_path).end(used, found.decisions) == strategy_path(tmp_path)
    Resume(tmp_path).refuse_others()  # a search saved it
    Resume(tmp_path).keep(Candidate(job, 1), job)  # another one was stopped
    Resume(tmp_path).refuse_others()
    with monkeypatch.context() as stopped:
        stopped.setattr("byteprophet.optimize.resume.write_strategy", _stopped)
        with pytest.raises(KeyboardInterrupt):
            Resume(tmp_path).end(used_by(random_job(4, 12), job), ())
    Resume(tmp_path).refuse_others()  # one was stopped before it had replaced the strategy
    Resume(tmp_path).end(used, found.decisions)
    assert "replaces" not in (tmp_path / "decisions.json").read_text()
    write_strategy(strategy_path(tmp_path), used_by(job, job))
    with pytest.raises(UserError, match=r"strategy\.json: was not saved by this command"):
        Resume(tmp_path).refuse_others()


def test_only_what_the_named_passes_made_is_taken_up(tmp_path: Path) -> None:
    job = with_runtime(random_job(3, 8), "allreduce", 100_000_000)
    made = tuple(Decision(each.name, "a move", 1) for each in PASSES)
    Resume(tmp_path).keep(Candidate(job, 1, made), job)
    for one in PASSES:
        assert Resume(tmp_path).left([job], [one], asked=True) == []
        assert Resume(tmp_path).left([job], [one], asked=False) == []
    assert Resume(tmp_path).left([job], PASSES, asked=True) != []

    # Where nobody knows which passes had a part in it, only a search with all of them may use it.
    decisions = tmp_path / "decisions.partial.json"
    told = decisions.read_text()
    of_an_earlier = told.replace('"by": "runtime"', '"by": "earlier search"')
    for unknown in ("{}", of_an_earlier):
        decisions.write_text(unknown)
        assert Resume(tmp_path).left([job], PASSES, asked=True) == []
        assert Resume(tmp_path).left([job], PASSES, asked=False) != []


def test_a_search_without_a_result_leaves_none(tmp_path: Path) -> None:
    job = random_job(3, 5)
    path = Resume(tmp_path).end(Used(job.model, job.strategy, 0), ())
    assert path == strategy_path(tmp_path)
    assert path.exists()
    assert Resume(tmp_path).end(None, ()) is None
    assert [*tmp_path.iterdir()] == []
    Resume(tmp_path).end(None, ())


def test_the_result_of_another_job_or_without_leave_is_left_alone(tmp_path: Path) -> None:
    job = random_job(3, 5)
    path = strategy_path(tmp_path)
    write_strategy(path, Used(job.model, job.strategy, 0))
    assert Resume(tmp_path).left([job], PASSES, asked=False) != []
    assert Resume(tmp_path).left([random_job(4, 5)], PASSES, asked=False) == []
    compiled = replace(job.strategy, regions=(Region(("p0", "p1"), compiled=True),))
    write_strategy(path, Used(job.model, compiled, 0))
    assert Resume(tmp_path).left([job], PASSES, asked=False) == []
    (left,) = Resume(tmp_path).left([job], [learned(job, region_costs_of(job, 3))], asked=False)
    assert left.move.job.strategy == compiled
    path.write_text("{")
    assert Resume(tmp_path).left([job], PASSES, asked=False) == []


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
