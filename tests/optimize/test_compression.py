"""A search's result, compressed in the end: only where that is faster, and only with leave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small_jobs import random_job, with_runtime

from byteprophet.errors import UserError
from byteprophet.job.strategy import BF16, DEAR, OURS
from byteprophet.job.strategy_file import read_strategy_file, write_strategy
from byteprophet.measure.run import Run
from byteprophet.optimize import gradient_changes
from byteprophet.optimize.compression import (
    COMPRESSION,
    check_may_compress,
    compressed_where_faster,
)
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.passes.half_gradients import Bf16Gradients
from byteprophet.optimize.passes.runtime import Runtime
from byteprophet.optimize.passes.tensor_fusion import TensorFusion
from byteprophet.optimize.recorded import used_by
from byteprophet.optimize.resume import Resume
from byteprophet.optimize.search import Decision, search
from byteprophet.strategy.compressed import compressed

from .test_keys import RATE_BPS, job_of

PASSES = [Runtime(), TensorFusion()]
RULES = ["*=randomk,k=0.01,min_bytes=4096"]


def test_it_is_the_last_decision_and_made_only_if_it_pays() -> None:
    job = random_job(3, 12)
    slow = replace(job, cluster=job.cluster.with_rate(job.cluster.workers[0].up_bps // 20, 0))
    found = search(slow, PASSES, budget_s=1.0)
    smaller = compressed_where_faster(found, lambda each: compressed(each, RULES, "--compress"))
    assert smaller.best.iteration_ns < found.best.iteration_ns
    assert smaller.best.decisions[-1].by == COMPRESSION
    assert smaller.best.decisions[:-1] == found.best.decisions
    assert smaller.best.job.strategy.compressors
    bucketed = {name for each in smaller.best.job.strategy.buckets for name in each.parameters}
    assert not bucketed & smaller.best.job.strategy.compressor_of.keys()
    assert [each.iteration_ns for each in smaller.families] == sorted(
        each.iteration_ns for each in smaller.families
    )
    # Links without a limit gain nothing, and compressing takes time.
    free = replace(job, cluster=job.cluster.with_rate(0, 0))
    found = search(free, PASSES, budget_s=1.0)
    same = compressed_where_faster(found, lambda each: compressed(each, RULES, "--compress"))
    assert not same.best.job.strategy.compressors


def test_gradients_in_half_precision_are_compressed_in_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A strategy has one of the two at most, and the search may have chosen the other one."""
    monkeypatch.setattr(gradient_changes, "cast_ns_per_byte", lambda reduce_dtype: 0.01)
    job = random_job(3, 12)
    slow = replace(job, cluster=job.cluster.with_rate(job.cluster.workers[0].up_bps // 20, 0))
    found = search(slow, [*PASSES, Bf16Gradients()], budget_s=1.0)
    half = found.best.job
    assert half.strategy.reduce_dtype == BF16
    smaller = compressed_where_faster(found, lambda each: compressed(each, RULES, "--compress"))
    chosen = smaller.best.job
    assert chosen.strategy.compressors
    assert not chosen.strategy.reduce_dtype
    assert not chosen.cluster.costs.cast_ns_per_byte
    what = smaller.best.decisions[-1].what
    assert what.endswith("as allowed, in place of gradients as bf16")
    gain_ns = sum(each.gain_ns for each in smaller.best.decisions)
    assert gain_ns == pytest.approx(found.start.iteration_ns - smaller.best.iteration_ns, abs=2)
    # One compressed gradient is no match for halving all of them.
    few = [f"{half.model.names[0]}=randomk,k=0.5"]
    kept = compressed_where_faster(found, lambda each: compressed(each, few, "--compress"))
    assert kept.best.job == half


def test_what_is_refused(tmp_path: Path) -> None:
    run, job = Run(tmp_path), random_job(3, 5)
    check_may_compress(run, job, "--compress", None)
    with pytest.raises(UserError, match="--compress: what its errors take of a memory"):
        check_may_compress(run, job, "--compress", 1 << 30)
    with pytest.raises(UserError, match="--compress: byteps compresses no gradients; allreduce"):
        check_may_compress(run, job_of(RATE_BPS), "--compress", None)
    (tmp_path / "worker.toml").touch()  # as a bench leaves it
    with pytest.raises(UserError, match="is a paced job, whose gradients mean nothing"):
        check_may_compress(run, job, "--compress", None)


@pytest.mark.parametrize("runtime", OURS)
def test_a_search_begins_with_an_earlier_result_without_compressors(
    runtime: str, tmp_path: Path
) -> None:
    """The earlier one had leave, and this one may not have it. With it, nothing is lost."""
    job = with_runtime(random_job(3, 12), runtime, 500_000)
    made = compressed(job, RULES, "--compress")
    alone = made.strategy.compressor_of.keys()
    assert 0 < len(alone) < len(job.model)
    decisions = Decision("tensor-fusion", "a move", 5), Decision(COMPRESSION, "compress", 3)
    Resume(tmp_path).end(used_by(made, job), decisions)
    (left,) = Resume(tmp_path).left([job], PASSES, asked=True)
    strategy = left.move.job.strategy
    assert left.decisions == decisions[:1]
    assert not strategy.compressors
    names = [name for bucket in strategy.buckets for name in bucket.parameters]
    assert sorted(names) == sorted(job.model.names)
    path = tmp_path / "plain.json"
    write_strategy(path, used_by(left.move.job, job))
    assert read_strategy_file(path).strategy == strategy  # a job could run under it
    if runtime == DEAR:
        assert all(bucket.sharded for bucket in strategy.buckets)
    again = compressed(left.move.job, RULES, "--compress")
    evaluate = Evaluator(folds=False)
    assert evaluate(again).iteration_ns == evaluate(made).iteration_ns
