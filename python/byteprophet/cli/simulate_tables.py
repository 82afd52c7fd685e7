"""What ``byteprophet simulate`` prints: tables of times and memory."""

from __future__ import annotations

from rich.table import Table

from byteprophet.report.console import facts_table
from byteprophet.simulate.execute.result import Simulated

GIB = 1 << 30


def times_table(result: Simulated) -> Table:
    """What the time of an iteration is spent on."""
    model, strategy = result.program.model, result.program.strategy
    samples = strategy.samples * strategy.micro_batches
    table = facts_table("An iteration")
    table.add_row("iteration time", ms_long(result.iteration_ns), f"{samples} samples")
    items = "tokens" if model.tokens > 1 else "samples"
    table.add_row(f"{items} per second", f"{result.tokens_per_s:,.0f}", "")
    table.add_row("model FLOPs utilisation", f"{result.mfu:.1%}", "of the GPUs' peak")
    for use, time_ns in result.by_use.items():
        if time_ns:
            share = f"{time_ns / result.iteration_ns:.1%}"
            table.add_row(f"  {use.value}", ms_long(time_ns), share)
    return table


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
