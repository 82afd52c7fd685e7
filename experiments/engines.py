"""Compares two simulations of the same jobs, the engine and graphs: equal times, and their cost.

    python experiments/engines.py

Both get the same ``Job``: four workers and two servers at 1 Gbit/s, nine iterations. For each
network and policy, the script prints the processor time of the engine (``byteprophet.engine``),
that of building (``graph/ps_graph.py``) and replaying the graph, and their ratio. Each is the
shortest of three tries. The exit status is 1 if an iteration ends at another nanosecond. Takes half
a minute. Controllers plan with the faster of the two.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from script import run_script

from byteprophet.cli.lists import split
from byteprophet.engine import COSTS, paced_job, simulate
from byteprophet.errors import JobFailed
from byteprophet.graph.ps_graph import build
from byteprophet.job import Job
from byteprophet.replay import replay
from byteprophet.workload import load
from byteprophet.workload.as_job import times_of

ITERATIONS, WORKERS, SERVERS, LINK_BPS = 9, 4, 2, 10**9
_TRIES = 3


def main(arguments: Sequence[str]) -> None:
    """Simulate, build, replay, print."""
    parser = argparse.ArgumentParser(description="Compare the engine with graphs of the same jobs.")
    parser.add_argument("--networks", default="resnet50,bert-base,densenet201")
    parser.add_argument("--schedulers", default="prophet,p3,fifo")
    options = parser.parse_args(arguments)
    print(f"{'network':14}{'policy':10}{'engine ms':>11}{'graph ms':>10}{'ratio':>7}")
    for network in split(options.networks, "--networks"):
        for scheduler in split(options.schedulers, "--schedulers"):
            workload = load(network)
            job = paced_job(
                workload,
                scheduler,
                workers=WORKERS,
                servers=SERVERS,
                bandwidth_bps=LINK_BPS,
                costs=COSTS,
            )
            job = replace(job, times=times_of(workload, WORKERS, ITERATIONS))
            engine_s, simulated = _shortest(lambda job=job: _simulated(job))  # type: ignore[misc]
            graph_s, replayed = _shortest(lambda job=job: _replayed(job))  # type: ignore[misc]
            print(
                f"{network:14}{scheduler:10}{engine_s * 1e3:11.1f}{graph_s * 1e3:10.1f}"
                f"{graph_s / engine_s:7.2f}",
                flush=True,
            )
            if not np.array_equal(simulated, replayed):
                raise JobFailed(f"{network}, {scheduler}: the engine and the graph differ")


def _simulated(job: Job) -> Any:
    """Starts of iterations in the engine, (workers, iterations)."""
    return simulate(job, iterations=ITERATIONS, warmup_iterations=0).start_ns[:, :-1]


def _replayed(job: Job) -> Any:
    """Starts of iterations in the replayed graph, (workers, iterations)."""
    built = build(job)
    return replay(built.graph).start_ns[built.begin]


def _shortest(do: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of the shortest try, and the result of the last one."""
    taken_s, result = [], None
    for _ in range(_TRIES):
        began_s = time.process_time()
        result = do()
        taken_s.append(time.process_time() - began_s)
    return min(taken_s), result


if __name__ == "__main__":
    run_script(main)
