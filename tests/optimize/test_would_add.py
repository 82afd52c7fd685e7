"""What passes without leave would add: told from costs that are there, and never used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from small_jobs import random_job, region_costs_of

from byteprophet.job import Job
from byteprophet.job.region_costs import RegionCosts, write_region_costs
from byteprophet.job.strategy import BF16, EAGER
from byteprophet.job.strategy_file import Used
from byteprophet.measure.run import Run
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.learning import Learned, learn
from byteprophet.optimize.memory_limit import MemoryLimit
from byteprophet.optimize.moves import Effect, Hints, Move, Pass
from byteprophet.optimize.passes.accumulation import Accumulation
from byteprophet.optimize.passes.bf16 import Bf16
from byteprophet.optimize.passes.compile import Compile
from byteprophet.optimize.passes.runtime import Runtime
from byteprophet.optimize.passes.tensor_fusion import TensorFusion
from byteprophet.optimize.recorded import used_by
from byteprophet.optimize.search import search
from byteprophet.optimize.would_add import would_add


class Quarter:
    """Another package's pass that loses information: an iteration computes a quarter as long."""

    name = "quarter"
    effect = Effect.LOSSY

    def starts(self, job: Job) -> Iterator[Move]:
        """The job with a strategy of its own, so that the search does not take it for the old."""
        strategy = replace(job.strategy, bucket_bytes=job.strategy.bucket_bytes + 1)
        yield Move("a quarter", replace(job, times=job.times.scaled(0.25), strategy=strategy))

    def moves(self, job: Job, hints: Hints) -> Iterator[Move]:
        """None."""
        yield from ()


class Idle(Quarter):
    """Offers nothing."""

    name = "idle"

    def starts(self, job: Job) -> Iterator[Move]:
        """None."""
        yield from ()


def best_of(job: Job) -> Job:
    """What the search finds without leave."""
    return search(job, [Runtime(), TensorFusion()], budget_s=600.0).best.job


def test_each_pass_is_tried_alone_and_none_is_used() -> None:
    job = random_job(3, 6)
    best = best_of(job)
    compiled = Compile()
    compiled.learn(job, region_costs_of(job, 3))
    strategy, times = best.strategy, best.times
    others: list[Pass] = [compiled, Idle(), Quarter(), Bf16()]
    passes = [TensorFusion()]
    found = would_add(best, passes, others, {"bf16": "no costs"}, budget_s=60.0)
    by_name = {each.name: each for each in found}
    assert [*by_name] == ["compile", "idle", "quarter", "bf16"]
    assert by_name["idle"].ratio == 1
    assert by_name["idle"].text == "idle (information is lost): would add nothing"
    assert by_name["bf16"].ratio is None
    assert by_name["bf16"].text == "bf16 (information is lost): not looked at: no costs"
    ratio = by_name["compile"].ratio
    assert ratio is not None
    assert ratio > 1
    assert by_name["compile"].text == (
        f"compile (other rounding): {ratio:.2f} times as fast, with --allow compile"
    )
    assert "compile" in {each.by for each in by_name["compile"].decisions}
    assert "quarter" not in {each.by for each in by_name["compile"].decisions}
    assert by_name["quarter"].decisions[0].what == "a quarter"
    assert best.strategy is strategy
    assert best.times is times


def test_what_is_said_is_what_a_search_with_leave_finds() -> None:
    """The ratio is that of whole replays, with all iterations and workers."""
    job = random_job(5, 6, ranks=3)
    best = best_of(job)
    compiled = Compile()
    compiled.learn(job, region_costs_of(job, 5))
    (added,) = would_add(best, [TensorFusion()], [compiled], {}, budget_s=600.0)
    with_leave = search(best, [TensorFusion(), compiled], budget_s=600.0).best.job
    whole = Evaluator(partial=False, folds=False)
    assert added.ratio == whole(best).iteration_ns / whole(with_leave).iteration_ns


def test_what_the_allowed_passes_find_later_is_not_counted() -> None:
    """The search had no time before, so the other pass gets a job that fusion still improves."""
    job = random_job(3, 8)
    (added,) = would_add(job, [Runtime(), TensorFusion()], [Idle()], {}, budget_s=60.0)
    assert added.ratio == 1
    assert not added.decisions


def learned(job: Job, directory: Path, others: list[Pass], **options: int | None) -> Learned:
    said: list[str] = []
    run = Run(directory)
    return learn(
        [(run, job)],
        [TensorFusion()],
        asked=False,
        budget_bytes=options.get("budget_bytes"),
        directory=directory / "regions",
        say=said.append,
        others=others,
    )


def test_costs_of_an_earlier_search_are_taken(tmp_path: Path) -> None:
    """Those of ``compile`` only: nothing is known of bfloat16."""
    job = random_job(3, 6)
    (tmp_path / "regions").mkdir()
    write_region_costs(tmp_path / "regions" / "region-costs.json", region_costs_of(job, 3))
    others: list[Pass] = [Compile(), Bf16(), Idle()]
    found = learned(job, tmp_path, others)
    assert [each.name for each in found.passes] == ["tensor-fusion"]
    assert found.costs is None
    assert [*found.left_out] == ["bf16"]
    assert "--would-add measures it" in found.left_out["bf16"]
    told = Compile()
    told.learn(job, region_costs_of(job, 3))
    starts = [move.what for move in told.starts(job)]
    assert starts
    assert [move.what for move in others[0].starts(job)] == starts


def test_bfloat16_needs_all_units(tmp_path: Path) -> None:
    """The whole model is cast, so what a unit costs that was not measured matters."""
    job = random_job(3, 6)
    costs = region_costs_of(job, 3)
    (tmp_path / "regions").mkdir()
    regions = {
        modules: replace(cost, modes={**cost.modes, BF16: cost.modes[EAGER]})
        for modules, cost in costs.regions.items()
    }
    (chain,) = costs.chains
    whole = sum(chain, ())
    costs = RegionCosts(((whole,), chain), regions)
    strategy = replace(job.strategy, autocast=True)
    for left in ((), (chain[-1],), (sum(chain[:2], ()),)):
        kept = {modules: cost for modules, cost in regions.items() if modules not in left}
        limited = replace(costs, regions=kept, unmeasured=left)
        write_region_costs(tmp_path / "regions" / "region-costs.json", limited)
        found = learned(job, tmp_path, [Bf16(), Compile()])
        lacks_unit = chain[-1] in left
        assert [*found.left_out] == (["bf16"] if lacks_unit else [])
        bf16 = Bf16()
        bf16.learn(job, limited)
        assert bf16.can_make(job, strategy) != lacks_unit


@pytest.mark.parametrize("parameters", [None, 5])
def test_without_costs_of_this_model_it_is_not_looked_at(
    parameters: int | None, tmp_path: Path
) -> None:
    """There is no file, or one of a smaller model."""
    if parameters is not None:
        (tmp_path / "regions").mkdir()
        costs = region_costs_of(random_job(3, parameters), 3)
        write_region_costs(tmp_path / "regions" / "region-costs.json", costs)
    found = learned(random_job(3, 6), tmp_path, [Compile(), Idle()])
    assert [*found.left_out] == ["compile"]


def test_a_damaged_file_of_costs_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "regions").mkdir()
    (tmp_path / "regions" / "region-costs.json").write_text("{}")
    found = learned(random_job(3, 6), tmp_path, [Compile(), Idle()])
    assert "region-costs.json: does not hold the costs of regions" in found.left_out["compile"]
    assert "idle" not in found.left_out


def test_scripts_of_ddp_accumulate_nothing(tmp_path: Path) -> None:
    job = random_job(3, 6)
    ddp = replace(job, strategy=replace(job.strategy, runtime="ddp"))
    found = learned(ddp, tmp_path, [Accumulation(), Idle()])
    assert "under the runtime ddp" in found.left_out["accumulation"]


def test_the_limit_of_memory_holds_for_them_too() -> None:
    """A limit that nothing but the best job fits: nothing can be added."""
    job = random_job(3, 6)

    class Only(MemoryLimit):
        def __init__(self) -> None:
            pass

        def fits(self, tried: Job) -> bool:
            return tried is job

        def repaired(self, tried: Job) -> Move | None:
            return None

    (added,) = would_add(job, [], [Quarter()], {}, budget_s=60.0, limit=Only())
    assert added.ratio == 1
    used: Used = used_by(job, job)
    assert used.strategy == job.strategy
