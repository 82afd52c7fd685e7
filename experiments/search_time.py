"""How long a search takes, and what each of dPRO's shortcuts brings (Table 5 of its paper).

    python experiments/search_time.py

Four networks with 16 workers, recorded for 20 iterations: with BytePS, 4 servers and `fifo` in
BytePS' partitions, and without servers under ``allreduce``, a bucket per gradient, as dPRO starts.
Times of workers and iterations vary by 2%. The links are so fast that a worker's gradients take as
long as its computation. Nothing is measured on a network: the jobs are made here.

The columns are those of the paper, each with the shortcuts of the ones before:

- *none*: dPRO's Algorithm 1. Every move may be anywhere, and a replay of the whole job judges it.
- *coarsened*: starts with a bucket per block, or per module, and moves cuts between blocks first,
  then between modules, then anywhere. A job with servers has one partition size for all gradients,
  so this changes nothing there.
- *partial*: replays of a few iterations, and buckets to start from that are planned from the
  synchronisation times of single buckets.
- *symmetry*: two workers stand for all until the end, and a move is tried at all equal blocks. This
  is the search as ``byteprophet optimize`` makes it.

The last column is measured. The others would take hours. For these the script makes the same search
with two workers and few iterations, which needs about as many replays, and counts them. Then it
measures how long single replays of jobs on the way take in full, and multiplies. A search that its
budget stopped is printed with ">", because it would take longer: a count ends with ``--count-s``,
and the last column after five minutes. All times are processor times of one core. ``result`` is the
iteration time of the best job, all replayed whole, over the best of the row; "start" is the
recorded job.

Takes three minutes per network. ``--networks`` and ``--transports`` choose.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.table import Table
from script import run_script

from byteprophet.allreduce.strategies import strategy_for
from byteprophet.cli.lists import split
from byteprophet.engine import COSTS, paced_job
from byteprophet.errors import UserError
from byteprophet.job import Cluster, Host, Job, Strategy, Times
from byteprophet.job.strategy import ALL_REDUCE, OURS
from byteprophet.optimize.evaluate import Evaluation, Evaluator
from byteprophet.optimize.moves import Move, Pass
from byteprophet.optimize.passes.policy import Policy as PolicyPass
from byteprophet.optimize.passes.runtime import Runtime
from byteprophet.optimize.passes.tensor_fusion import TensorFusion
from byteprophet.optimize.passes.tensor_partition import TensorPartition
from byteprophet.optimize.search import STAGES, Found, Stage, search
from byteprophet.optimize.view import View
from byteprophet.replay.all_reduce import with_strategy
from byteprophet.report.console import table_console
from byteprophet.schedulers import STOCK_PARTITION_BYTES
from byteprophet.workload import load
from byteprophet.workload.as_job import model_of, times_of

NETWORKS = ("bert-base", "gpt2", "resnet152", "vgg19")
SERVERS, ALONE = "servers", "allreduce"
LIMIT_S, LEAST_RATIO, SAME = 30.0, 100.0, 0.01
"""What a search should take at most, how many times more it should without, and how near."""
_BUDGET_S = 10 * LIMIT_S
"""Of the last column, so that it is not stopped at the limit that it is held to."""

_WORKERS, _SERVERS, _ITERATIONS, _NOISE = 16, 4, 20, 0.02
_UPDATE_NS = 20_000

PLAIN = (Stage(View.PARAMETERS, symmetric=False),)
COARSE = tuple(Stage(view, symmetric=False) for view in View)


class Sampler(Evaluator):
    """Remembers the jobs that it has replayed, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Job] = []

    def __call__(self, job: Job) -> Evaluation:
        """See ``Evaluator``."""
        before = self.replays
        evaluation = super().__call__(job)
        if self.replays > before:
            self.jobs.append(job)
        return evaluation

    def unfolded(self, job: Job) -> Evaluator | None:
        """None: the counted search has no last part with all workers, but replays all in full."""
        return None


class Unplanned(TensorFusion):
    """Starts from the recorded buckets."""

    def starts(self, job: Job) -> Iterable[Move]:
        """None."""
        return ()


class Coarsened(TensorFusion):
    """Starts from a bucket per block, and from one per module."""

    def starts(self, job: Job) -> Iterable[Move]:
        """The first two."""
        return itertools.islice(super().starts(job), 2)


class UnplannedRuntimes(Runtime):
    """Every runtime, in the recorded buckets."""

    def starts(self, job: Job) -> Iterator[Move]:
        """See ``Pass``."""
        for runtime in OURS:
            yield Move(f"runtime {runtime}", _rebucketed(job, runtime))


def _rebucketed(job: Job, runtime: str) -> Job:
    return with_strategy(job, strategy_for(job, runtime, bucket_bytes=1))


@dataclass(frozen=True)
class Column:
    """A search: ``replays``, ``seconds`` of it, and its best job. ``ended``: it ended by itself."""

    name: str
    replays: int
    seconds: float
    best: Job
    ended: bool


def main(arguments: Sequence[str]) -> None:
    """Search, count, measure, print each network when it is known."""
    parser = argparse.ArgumentParser(
        description="Measure how long searches take with and without dPRO's shortcuts.",
        epilog="example: python experiments/search_time.py --networks vgg19",
    )
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--transports", default=f"{SERVERS},{ALONE}")
    parser.add_argument("--count-s", type=float, default=60.0, help="most seconds of a count")
    parser.add_argument("--samples", type=int, default=2, help="full replays that are timed")
    options = parser.parse_args(arguments)
    if options.samples < 1 or not options.count_s > 0:
        raise UserError("--samples must be at least 1, --count-s above 0")
    networks = split(options.networks, "--networks")
    transports = split(options.transports, "--transports")
    for transport in transports:
        if transport not in MAKE:
            raise UserError(f"--transports {transport!r}: must be one of {', '.join(MAKE)}")
    for network in networks:
        load(network)  # so that a wrong name is refused before any search
    console = table_console()
    for network, transport in itertools.product(networks, transports):
        job = MAKE[transport](network)
        columns = columns_of(job, transport, options.count_s, options.samples)
        table = new_table()
        said = add_rows(table, f"{network}, {transport}", job, columns)
        console.print(table)
        print(said, flush=True)


def with_servers(network: str) -> Job:
    """A job of BytePS under ``fifo``."""
    workload = load(network)
    rate_bps = _rate_bps(workload.size_bytes, workload.forward_ns + workload.backward_ns)
    job = paced_job(
        workload,
        "fifo",
        workers=_WORKERS,
        servers=_SERVERS,
        bandwidth_bps=rate_bps,
        server_bandwidth_bps=rate_bps * _WORKERS // _SERVERS,
        partition_bytes=STOCK_PARTITION_BYTES,
        costs=replace(
            COSTS,
            sum_ns_per_byte=0.02,
            hand_over_ns=5_000,
            request_lags_ns=(0, 20_000, 50_000),
            answers_bytes=4 << 20,
        ),
    )
    return replace(job, times=_times(network))


def without_servers(network: str) -> Job:
    """A job under ``allreduce``, with a bucket per gradient."""
    workload = load(network)
    rate_bps = _rate_bps(2 * workload.size_bytes, workload.forward_ns + workload.backward_ns)
    job = Job(
        model_of(workload),
        _times(network),
        Cluster((Host(rate_bps, rate_bps),) * _WORKERS, costs=replace(COSTS, start_lag_ns=200_000)),
        Strategy(ALL_REDUCE),
    )
    return replace(job, strategy=strategy_for(job, ALL_REDUCE, bucket_bytes=1))


MAKE: dict[str, Callable[[str], Job]] = {SERVERS: with_servers, ALONE: without_servers}


def _rate_bps(size_bytes: int, compute_ns: int) -> int:
    """At which ``size_bytes`` take as long as the computation."""
    return round(size_bytes * 8e9 / compute_ns)


def _times(network: str) -> Times:
    times = times_of(load(network), _WORKERS, _ITERATIONS)
    factors = np.random.default_rng(0).normal(1, _NOISE, (_WORKERS, _ITERATIONS))
    return Times(
        (times.forward_ns * factors[..., None]).astype(np.int64),
        (times.ready_ns * factors[..., None]).astype(np.int64),
        (times.backward_ns * factors).astype(np.int64),
        times.update_ns + _UPDATE_NS,
    )


def columns_of(job: Job, transport: str, count_s: float, samples: int) -> list[Column]:
    """The four searches of a row."""
    passes: tuple[Pass, ...] = (Runtime(), TensorFusion())
    unplanned: tuple[Pass, ...] = (UnplannedRuntimes(), Unplanned())
    coarsened: tuple[Pass, ...] = (UnplannedRuntimes(), Coarsened())
    if transport == SERVERS:
        passes = unplanned = coarsened = (PolicyPass(), TensorPartition())
    columns = []
    for name, chosen, stages, partial in (
        ("none", unplanned, PLAIN, False),
        ("coarsened", coarsened, COARSE, False),
        ("+ partial", passes, COARSE, True),
    ):
        columns.append(_counted(job, name, chosen, stages, partial, count_s, samples))
    # Half of the budget is kept for replays with all workers: before, nothing is stopped.
    found, took_s, ended = _timed(
        lambda: search(job, passes, budget_s=_BUDGET_S, stages=STAGES), _BUDGET_S / 2
    )
    return [*columns, Column("+ symmetry", found.replays, took_s, found.best.job, ended)]


def _counted(
    job: Job,
    name: str,
    passes: Sequence[Pass],
    stages: Sequence[Stage],
    partial: bool,
    count_s: float,
    samples: int,
) -> Column:
    """A search that is counted. ``partial``: whether its replays would be."""
    sampler = Sampler()
    found, took_s, ended = _timed(
        lambda: search(job, passes, budget_s=count_s, stages=stages, evaluator=sampler), count_s
    )
    chosen = [sampler.jobs[n] for n in np.linspace(0, len(sampler.jobs) - 1, samples).astype(int)]
    full_s = np.mean([_seconds(Evaluator(partial=partial, folds=False), one) for one in chosen])
    quick_s = np.mean([_seconds(Evaluator(), one) for one in chosen])
    overhead_s = max(0.0, took_s - found.replays * quick_s)
    seconds = found.replays * full_s + overhead_s
    return Column(name, found.replays, float(seconds), found.best.job, ended)


def _timed(run: Callable[[], Found], stopped_s: float) -> tuple[Found, float, bool]:
    """What a search found, its processor time, and whether it ended by itself.

    ``stopped_s``: after how much wall time its budget may have stopped it.
    """
    began_s, cpu_began_s = time.monotonic(), time.process_time()
    found = run()
    ended = time.monotonic() - began_s < stopped_s
    return found, time.process_time() - cpu_began_s, ended


def _seconds(evaluator: Evaluator, job: Job) -> float:
    began_s = time.process_time()
    evaluator(job)
    return time.process_time() - began_s


def new_table() -> Table:
    """The table without rows."""
    table = Table(box=None, pad_edge=False)
    for heading in ("network", "transport", "search"):
        table.add_column(heading)
    for heading in ("replays", "time", "ratio", "result"):
        table.add_column(heading, justify="right")
    return table


def add_rows(table: Table, name: str, start: Job, columns: Sequence[Column]) -> str:
    """Add the rows of a job. Returns what is to be said of them."""
    whole = Evaluator(partial=False, folds=False)
    start_ns = whole(start).iteration_ns
    results_ns = [whole(column.best).iteration_ns for column in columns]
    best_ns = min(results_ns)
    last = columns[-1]
    table.add_row(*name.split(", "), "start", "", "", "", f"{start_ns / best_ns:.3f}")
    for column, result_ns in zip(columns, results_ns, strict=True):
        more = "" if column.ended else ">"
        table.add_row(
            "",
            "",
            column.name,
            f"{more}{column.replays}",
            f"{more}{_time(column.seconds)}",
            f"{more}{column.seconds / last.seconds:.1f}" if last.ended else "-",
            f"{result_ns / best_ns:.3f}",
        )
    return f"{name}: {_claims(columns, results_ns[-1] / best_ns - 1)}"


def _claims(columns: Sequence[Column], near: float) -> str:
    """What holds of the last column, whose result is ``near`` the best; see ``LIMIT_S``."""
    last = columns[-1]
    ratio = columns[0].seconds / last.seconds
    checks = {
        f"at most {LIMIT_S:.0f} s": last.ended and last.seconds <= LIMIT_S,
        f"at least {LEAST_RATIO:.0f} times less than without": last.ended and ratio >= LEAST_RATIO,
        f"within {SAME:.0%} of the best": near <= SAME,
    }
    return ", ".join(
        f"{claim}: {'holds' if holds else 'does not hold'}" for claim, holds in checks.items()
    )


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":
    run_script(main)
