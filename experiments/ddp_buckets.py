"""How well other bucket sizes of DistributedDataParallel are foretold from one recorded job.

    python experiments/ddp_buckets.py --models resnet,gpt --ranks 2 --ratio 1

The models of ``models/`` train with real compute behind limited links. Each job runs with every
bucket size, in turn, round after round. From each run with the default of 25 MB, the other sizes
are predicted, and compared with the run of the same round. Printed are the number of buckets,
predicted and measured (a wrong one means that gradients became ready in another order), the ratio
of the iteration to that with the default, predicted and measured, the error of each run's own
replay, and forward and backward in each run. Where cores are shared, these take longer while
buckets are sent, which a job with few buckets does not show.

A model takes two minutes per round on two quiet cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from gains_cell import computed
from gains_cells import DDP, Cell, job_of
from rich import box
from rich.table import Table
from script import check_least, numbers, progress_of, run_script

from byteprophet.allreduce.strategies import DDP_BUCKET_BYTES, strategy_for
from byteprophet.cli.lists import split
from byteprophet.errors import UserError
from byteprophet.launcher import make_run_directory, run_job
from byteprophet.measure.run import Run
from byteprophet.measure.servers import Measured, measure_run
from byteprophet.network import why_not_permitted
from byteprophet.replay.all_reduce import replay_job, with_strategy
from byteprophet.replay.predict import warmup_of
from byteprophet.report.console import table_console

_MIB = 1 << 20


def main(arguments: Sequence[str]) -> None:
    """Run, print."""
    options = _parse(arguments)
    check_least(options, ranks=2, ratio=0.01, rounds=1, iterations=1)
    caps_mb = numbers(options.caps, "--caps", float, 0.01, 10_000)
    reason = why_not_permitted()
    if reason is not None:
        raise UserError(f"limited links need network namespaces: {reason}")
    table = Table(
        "model",
        "bucket_cap_mb",
        "buckets",
        "predicted",
        "ratio predicted",
        "measured",
        "error (points)",
        "own replay",
        "forward",
        "backward (ms)",
        box=box.SIMPLE,
    )
    for model in split(options.models, "--models"):
        cell = Cell(model, DDP, options.ranks, options.ratio)
        for _ in range(options.rounds):
            for row in _round(cell, caps_mb, options):
                table.add_row(*row)
    table_console(120).print(table)


def _round(cell: Cell, caps_mb: Sequence[float], options: argparse.Namespace) -> list[list[str]]:
    """A run with the default and one with each other size; a row of the table for each."""
    say = progress_of(cell.model)
    size_bytes, compute_ns = computed(cell, options.out, options.iterations, say)
    bandwidth_bps = cell.bandwidth_bps(size_bytes, compute_ns)
    default, rows = None, []
    for cap_mb in (None, *caps_mb):
        say("default buckets" if cap_mb is None else f"bucket_cap_mb={cap_mb:g}")
        runs = options.out / "runs"
        spec = job_of(cell, bandwidth_bps, options.iterations, runs, bucket_cap_mb=cap_mb)
        directory = make_run_directory(runs, cell.model)
        run_job(replace(spec, run_directory=directory)).check()
        measured = measure_run(Run(directory))
        default = default or measured
        rows.append(row_of(cell.model, cap_mb, default, measured))
    return rows


def row_of(model: str, cap_mb: float | None, default: Measured, measured: Measured) -> list[str]:
    """``measured`` ran with ``cap_mb``; ``default`` is the job from which that is predicted."""
    size_bytes = DDP_BUCKET_BYTES if cap_mb is None else round(cap_mb * _MIB)
    strategy = strategy_for(default.job, DDP, size_bytes)
    was_ns, is_ns = (float(np.median(m.iteration_ns[warmup_of(m) :])) for m in (default, measured))
    same_ns = _replayed_ns(default, default)
    changed = replace(default, job=with_strategy(default.job, strategy))
    predicted = _replayed_ns(changed, default) / same_ns
    times = measured.job.times
    computes_ms = (
        float(np.median(each)) / 1e6 for each in (times.forward_ns.sum(axis=2), times.backward_ns)
    )
    return [
        model,
        "default" if cap_mb is None else f"{cap_mb:g}",
        str(len(measured.job.strategy.buckets)),
        str(len(strategy.buckets)),
        f"{predicted:.3f}",
        f"{is_ns / was_ns:.3f}",
        f"{100 * (predicted - is_ns / was_ns):+.1f}",
        f"{_replayed_ns(measured, measured) / is_ns - 1:+.1%}",
        *(f"{each:.0f}" for each in computes_ms),
    ]


def _replayed_ns(measured: Measured, recorded: Measured) -> float:
    """The replay of ``measured.job``, without the warm-up of ``recorded``."""
    times_ns = replay_job(measured.job).iterations_ns
    return float(np.median(times_ns[warmup_of(recorded) :]))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Predict other bucket sizes of DistributedDataParallel, and run them.",
        epilog="example: python experiments/ddp_buckets.py --models vgg --caps 1 --rounds 1",
    )
    parser.add_argument("--models", default="resnet,gpt,vgg", help="of models/, by commas")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--ratio", type=float, default=1.0, help="communication over compute")
    parser.add_argument("--caps", default="1,5,10", help="bucket sizes in MB, by commas")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=25, help="of each job")
    parser.add_argument("--out", type=Path, default=Path("runs/ddp_buckets"), help="of the runs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_script(main)
