"""How near the search for buckets comes to the best there are, on small random jobs.

    python experiments/search_quality.py

Each job has 4 to 6 parameters, 2 to 4 ranks, and one of our all-reduce runtimes. The script replays
every runtime with every cut of the order in which gradients are ready, and then searches with the
passes ``runtime`` and ``tensor-fusion``. It prints how far the result is above the best of all, and
whether it was ever above its start. Seeds from 10,000 to 59,999 are for tuning the search.
Single jobs of the lower ones, which are reported by default, were looked at for that, too; those of
60,000 and more were not (docs/optimizer.md). Takes ten minutes.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence

import numpy as np
from script import run_script
from small_jobs import random_job

from byteprophet.allreduce.strategies import strategy_of_groups, timing_of
from byteprophet.errors import JobFailed, UserError
from byteprophet.job import Job
from byteprophet.job.strategy import OURS
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.passes.runtime import Runtime
from byteprophet.optimize.passes.tensor_fusion import TensorFusion
from byteprophet.optimize.search import search
from byteprophet.replay.all_reduce import with_strategy

MEDIAN, WORST = 0.01, 0.05
"""How far above the best the search may be."""

_BUDGET_S = 600.0  # a search of a small job ends by itself


def main(arguments: Sequence[str]) -> None:
    """Draw, enumerate, search, print."""
    parser = argparse.ArgumentParser(
        description="Compare the search with all cuts of small random jobs.",
        epilog="example: python experiments/search_quality.py --jobs 100 --seed 10000",
    )
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first job")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        raise UserError(f"--jobs {options.jobs}: must be at least 1")
    above, above_start = [], 0
    for seed in range(options.seed, options.seed + options.jobs):
        job = small_job(seed)
        best_ns = best_of_all(job, Evaluator(folds=False))
        found = search(job, (Runtime(), TensorFusion()), budget_s=_BUDGET_S)
        above.append(found.best.iteration_ns / best_ns - 1)
        above_start += found.best.iteration_ns > found.start.iteration_ns
        if above[-1] > WORST:
            print(f"seed {seed}: {above[-1]:.2%} above the best", file=sys.stderr)
    median, high, worst = np.median(above), np.quantile(above, 0.95), max(above)
    print(
        f"{len(above)} jobs: above the best of all cuts by {median:.2%} in the median, "
        f"{high:.2%} in one of twenty, {worst:.2%} at worst; above the start: {above_start}"
    )
    if median > MEDIAN or worst > WORST or above_start:
        raise JobFailed(f"at most {MEDIAN:.0%}, {WORST:.0%} and 0 were expected")


def small_job(seed: int) -> Job:
    """Of 4 to 6 parameters and 2 to 4 ranks."""
    return random_job(seed, 4 + seed % 3, 2 + seed // 3 % 3)


def best_of_all(job: Job, evaluator: Evaluator) -> int:
    """The shortest iteration of every runtime with every cut of the order of readiness."""
    timing = timing_of(job)
    order = timing.by_readiness
    times_ns = []
    for runtime, cuts in itertools.product(OURS, range(1 << (len(order) - 1))):
        ends = [place + 1 for place in range(len(order) - 1) if cuts >> place & 1]
        groups = tuple(order[a:b] for a, b in itertools.pairwise([0, *ends, len(order)]))
        strategy = strategy_of_groups(timing, runtime, groups)
        times_ns.append(evaluator(with_strategy(job, strategy)).iteration_ns)
    return min(times_ns)


if __name__ == "__main__":
    run_script(main)
