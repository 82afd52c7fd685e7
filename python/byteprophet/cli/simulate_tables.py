"""What ``byteprophet simulate`` prints: tables of times and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from byteprophet.report.console import facts_table
from byteprophet.simulate.calibrate.fit import Calibrated
from byteprophet.simulate.calibrate.interval import Interval
from byteprophet.simulate.calibrate.runs import MeasuredRun
from byteprophet.simulate.clusters.constants import Constant
from byteprophet.simulate.execute.result import Simulated

GIB = 1 << 30


def times_table(result: Simulated, found: Interval) -> Table:
    """What the time of an iteration is spent on."""
    model, strategy = result.program.model, result.program.strategy
    samples = strategy.samples * strategy.micro_batches
    table = facts_table("An iteration")
    within = f"{ms_long(found.low_ns)} to {ms_long(found.high_ns)} nine times in ten"
    table.add_row("iteration time", ms_long(result.iteration_ns), within)
    table.add_row("samples", f"{samples:,}", "per iteration")
    items = "tokens" if model.tokens > 1 else "samples"
    table.add_row(f"{items} per second", f"{result.tokens_per_s:,.0f}", "")
    table.add_row("model FLOPs utilisation", f"{result.mfu:.1%}", "of the GPUs' peak")
    for use, time_ns in result.by_use.items():
        if time_ns:
            share = f"{time_ns / result.iteration_ns:.1%}"
            table.add_row(f"  {use.value}", ms_long(time_ns), share)
    return table


def calibration_table(found: Calibrated) -> Table:
    """The constants before and after; those of which the runs say nothing are left out."""
    table = Table(title="Constants", title_justify="left", box=None, pad_edge=False)
    for name in ("", "before", "calibrated"):
        table.add_column(name, justify="right" if name else "left")
    for before, after in zip(found.before, found.after, strict=True):
        if after.name in found.set_by_runs:
            table.add_row(before.name, constant_text(before), constant_text(after))
    return table


def runs_table(runs: Sequence[MeasuredRun], found: Calibrated) -> Table:
    """Each measured run, and how far predictions are off."""
    table = Table(title="Measured runs", title_justify="left", box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    for name in ("measured", "error before", "calibrated"):
        table.add_column(name, justify="right")
    for run, before, after in zip(runs, found.errors_before, found.errors, strict=True):
        table.add_row(run.text, ms_long(round(run.measured_ns)), f"{before:+.1%}", f"{after:+.1%}")
    return table


def constant_text(constant: Constant) -> str:
    """A constant's value and uncertainty."""
    value = f"{constant.value:,}" if constant.most == math.inf else f"{constant.value:.3g}"
    return f"{value} ± {constant.uncertainty:.1%}" if constant.uncertainty else value


def memory_table(result: Simulated) -> Table:
    """The peak memory of pipeline ranks; of many, the first, the largest and the last."""
    table = Table(title="Peak memory in GiB", title_justify="left", box=None, pad_edge=False)
    table.add_column("pipeline rank")
    names = ("parameters", "gradients", "optimizer_state", "activations", "transient", "reserved")
    for name in (*names, "total"):
        table.add_column(name.replace("_", " "), justify="right")
    ranks = list(enumerate(result.memory))
    largest = max(ranks, key=lambda item: item[1].total)
    shown = sorted({ranks[0], largest, ranks[-1]}, key=lambda item: item[0])
    for rank, memory in shown if len(ranks) > 8 else ranks:
        row = (getattr(memory, name) / GIB for name in (*names, "total"))
        table.add_row(str(rank), *(f"{value:.2f}" for value in row))
    return table


def ms_long(time_ns: int) -> str:
    """A time in milliseconds, with separators."""
    return f"{time_ns / 1e6:,.1f} ms"
