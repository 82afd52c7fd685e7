"""Passes that change gradients: where they are offered, and that they go with all others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small_jobs import random_job

from byteprophet.allreduce.strategies import strategy_for
from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.strategy_file import Used, strategy_path, write_strategy
from byteprophet.measure.run import Run
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.learning import learn
from byteprophet.optimize.moves import Effect, Hints, Pass
from byteprophet.optimize.passes.accumulation import Accumulation
from byteprophet.optimize.passes.half_gradients import Bf16Gradients, Fp16Gradients
from byteprophet.optimize.passes.placement import Placement
from byteprophet.optimize.passes.runtime import Runtime
from byteprophet.optimize.passes.tensor_fusion import TensorFusion
from byteprophet.optimize.passes.tensor_partition import TensorPartition
from byteprophet.optimize.resume import Resume
from byteprophet.optimize.search import search
from byteprophet.replay.all_reduce import with_strategy
from byteprophet.replay.predict import kind_of
from byteprophet.schedulers import STOCK

from .test_keys import RATE_BPS, job_of
from .test_recorded import Skipping

ALL = (Bf16Gradients(), Fp16Gradients(), Accumulation())


def offered(each: Pass, job: Job) -> list[str]:
    """What a pass offers first; all of it is another job."""
    moves = [*each.starts(job)]
    assert all(move.job.strategy != job.strategy for move in moves)
    return [move.what for move in moves]


def test_passes_lose_information_and_say_so() -> None:
    assert {each.name for each in ALL} == {"bf16-gradients", "fp16-gradients", "accumulation"}
    assert {each.effect for each in ALL} == {Effect.LOSSY}


def test_what_is_offered_is_what_can_be_carried_out() -> None:
    bf16, fp16, accumulation = ALL
    ours, served = random_job(3, 5), job_of(RATE_BPS)
    steps = [f"exchange gradients in one of {count} steps" for count in (2, 4, 8)]
    assert offered(bf16, ours) == ["gradients as bf16"]
    assert offered(fp16, ours) == ["gradients as fp16"]
    assert offered(accumulation, ours) == steps
    assert offered(bf16, served) == []  # BytePS sends bfloat16 as float32
    assert offered(fp16, served) == ["gradients as fp16"]
    assert offered(accumulation, served) == steps
    ddp = replace(ours, strategy=strategy_for(ours, "ddp"))
    assert offered(bf16, ddp) == ["gradients as bf16"]
    assert offered(accumulation, ddp) == []
    for runtime in ("fsdp2", "wfbp"):
        other = replace(ours, strategy=strategy_for(ours, runtime))
        assert [offered(each, other) for each in ALL] == [[], [], []]
    stock = replace(served, policy=replace(served.push_policy, name=STOCK))
    assert [offered(each, stock) for each in ALL] == [[], [], []]


def test_what_a_script_does_itself_is_not_done_twice() -> None:
    bf16, fp16, accumulation = ALL
    job = random_job(3, 5)
    compressed = replace(job, strategy=replace(job.strategy, reduce_fixed="it compresses"))
    recorded = replace(job, strategy=replace(job.strategy, reduce_dtype="fp16"))
    for each in (compressed, recorded):
        for half in (bf16, fp16):
            assert [*half.starts(each), *half.moves(each, Hints())] == []
    accumulated = replace(
        job,
        times=replace(job.times, passes=4),
        strategy=replace(job.strategy, accumulation=4),
    )
    assert [*accumulation.starts(accumulated), *accumulation.moves(accumulated, Hints())] == []
    assert kind_of(accumulated).iterations_ns(accumulated).min() > 0  # it can be replayed


def test_reasons_are_told() -> None:
    bf16, fp16, accumulation = ALL
    job = random_job(3, 5)
    assert [each.why_not(job) for each in ALL] == [None] * 3
    assert bf16.why_not(job_of(RATE_BPS)) == "BytePS does not send gradients as bf16"
    compressed = replace(job, strategy=replace(job.strategy, reduce_fixed="it compresses"))
    assert fp16.why_not(compressed) == "it compresses"
    ddp = replace(job, strategy=strategy_for(job, "ddp"))
    assert "under the runtime ddp, gradients cannot be" in str(accumulation.why_not(ddp))


def test_moves_lead_back() -> None:
    bf16, _, accumulation = ALL
    job = random_job(3, 5)
    (cast,) = bf16.moves(job, Hints())
    (back,) = bf16.moves(cast.job, Hints())
    assert back.job == job
    (two,) = accumulation.moves(job, Hints())
    four, one = accumulation.moves(two.job, Hints())
    assert four.job.strategy.accumulation == 4
    assert one.job == job


@pytest.mark.parametrize("seed", [2, 5])
def test_other_passes_keep_what_is_decided(seed: int) -> None:
    job = random_job(seed, 8)
    (cast,) = ALL[0].starts(job)
    both = next(iter(ALL[2].starts(cast.job))).job
    for each in (Runtime(), TensorFusion()):
        for move in [*each.starts(both), *each.moves(both, Evaluator()(both).hints)]:
            strategy = move.job.strategy
            assert (strategy.reduce_dtype, strategy.accumulation) == ("bf16", 2)
            assert move.job.times.passes == 1  # what is executed comes last
    served = job_of(RATE_BPS, RATE_BPS)
    (cast,) = ALL[1].starts(served)
    for each in (Placement(), TensorPartition()):
        for move in each.moves(cast.job, Evaluator()(cast.job).hints):
            assert move.job.strategy.reduce_dtype == "fp16"


def test_a_search_uses_them_with_buckets() -> None:
    """Links are the limit: fewer bytes, and fewer exchanges, are what helps."""
    job = random_job(3, 12)
    slow = replace(job, cluster=job.cluster.with_rate(job.cluster.workers[0].up_bps // 20, 0))
    plain = search(slow, [Runtime(), TensorFusion()], budget_s=3.0).best
    half = search(slow, [Runtime(), TensorFusion(), ALL[0]], budget_s=3.0).best
    assert half.job.strategy.reduce_dtype == "bf16"
    assert half.iteration_ns < plain.iteration_ns
    found = search(slow, [Runtime(), TensorFusion(), ALL[0], ALL[2]], budget_s=30.0).best
    assert found.job.strategy.accumulation == 8
    assert found.iteration_ns < half.iteration_ns


def test_an_earlier_search_is_taken_up_with_leave_only(tmp_path: Path) -> None:
    job = random_job(3, 5)
    (cast,) = ALL[0].starts(job)
    both = next(iter(ALL[2].starts(cast.job))).job
    write_strategy(strategy_path(tmp_path), Used(both.model, both.strategy, 0))
    assert Resume(tmp_path).left([job], [TensorFusion(), ALL[0]], asked=False) == []
    for passes in (ALL, (ALL[0], Skipping())):  # a pass gives leave by what it does
        (left,) = Resume(tmp_path).left([job], passes, asked=False)
        assert left.move.job == with_strategy(both, both.strategy)


def test_a_pass_that_cannot_take_part_is_left_out_with_its_reason(tmp_path: Path) -> None:
    said: list[str] = []
    job = random_job(3, 5)

    def passes(asked: bool, job: Job = job, budget_bytes: int | None = None) -> list[Pass]:
        return learn(
            [(Run(tmp_path), job)],
            ALL[:1] if asked else ALL,
            asked=asked,
            budget_bytes=budget_bytes,
            directory=tmp_path,
            say=said.append,
        ).passes

    assert passes(asked=False) == [*ALL]
    compressed = replace(job, strategy=replace(job.strategy, reduce_fixed="it compresses"))
    assert passes(asked=False, job=compressed) == [ALL[2]]
    assert said == [f"without {name}-gradients: it compresses" for name in ("bf16", "fp16")]
    with pytest.raises(UserError, match="--pass bf16-gradients: it compresses"):
        passes(asked=True, job=compressed)
    with pytest.raises(UserError, match="what memory its gradients take is not known"):
        passes(asked=True, budget_bytes=1 << 30)
    (tmp_path / "worker.toml").touch()  # as a bench leaves it
    assert passes(asked=False) == [*ALL[:2]]
