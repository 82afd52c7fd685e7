"""Why moves were made: by pass, and by the theorem that expected them to pay."""

from __future__ import annotations

from dataclasses import replace

from small_jobs import random_job, region_costs_of, with_runtime

from byteprophet.job.strategy import ALL_REDUCE
from byteprophet.optimize.explanation import by_pass, reasons_of
from byteprophet.optimize.moves import Move
from byteprophet.optimize.passes.compile import Compile
from byteprophet.optimize.passes.tensor_fusion import TensorFusion
from byteprophet.optimize.search import Checked, Decision, Left, search

MADE = (
    Decision("compile", "compile 0", 5, "Theorem 1"),
    Decision("tensor-fusion", "merge", 4, "Theorem 2"),
    Decision("compile", "compile 0+1", 7, "Theorem 1"),
    Decision("compile", "split", -1),
)


def test_one_decision_per_pass() -> None:
    compiled, fused = by_pass(MADE)
    assert (compiled.by, compiled.gain_ns, compiled.theorem) == ("compile", 11, "Theorem 1")
    assert compiled.what == "3 moves, 2 by Theorem 1; the last: split"
    assert fused.what == "merge (by Theorem 2)"


def test_one_reason_per_theorem_and_none_for_the_replay_alone() -> None:
    tested = {"Theorem 1": Checked(9, 6), "Theorem 2": Checked(1, 1)}
    first, second, alone = reasons_of(MADE, tested)
    assert (first.theorem, first.moves, first.gain_ns) == ("Theorem 1", 2, 12)
    assert first.text == (
        "2 moves that it expected to pay; 6 of 9 such moves paid when they were replayed"
    )
    assert first.as_json()["paid"] == 6
    assert second.text.startswith("1 move that it expected to pay; 1 of 1 such moves")
    assert (alone.theorem, alone.gain_ns) == ("", -1)
    assert alone.as_json() == {
        "theorem": None, "moves": 1, "gain_ns": -1, "replayed": None, "paid": None,
    }  # fmt: skip
    assert not reasons_of((), {})


def test_a_search_counts_what_theorems_expected() -> None:
    job = with_runtime(random_job(7, 6), ALL_REDUCE, 1)
    compiled = Compile()
    compiled.learn(job, region_costs_of(job, 7))
    found = search(job, [compiled, TensorFusion()], budget_s=600.0)
    assert found.tested
    for tested in found.tested.values():
        assert 0 <= tested.paid <= tested.replayed
    assert sum(tested.replayed for tested in found.tested.values()) <= found.replays
    reasons = reasons_of(found.best.decisions, found.tested)
    gain_ns = sum(each.gain_ns for each in reasons)
    assert gain_ns == found.start.iteration_ns - found.best.iteration_ns
    for each in reasons:
        assert not each.theorem or each.tested.paid


def test_moves_of_an_earlier_search_count() -> None:
    job = with_runtime(random_job(7, 6), ALL_REDUCE, 1)
    best = search(job, [TensorFusion()], budget_s=600.0).best
    made = (*best.decisions[:-1], replace(best.decisions[-1], theorem="Theorem 2"))
    left = Left(Move("as an earlier search left it", best.job), made)
    found = search(job, [TensorFusion()], budget_s=600.0, left=[left])
    (reason,) = (each for each in reasons_of(found.best.decisions, found.tested) if each.theorem)
    assert reason.tested.paid >= 1
    assert reason.tested.replayed >= reason.moves
