"""The samples of network monitors as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from byteprophet.monitor.samples import Sample, WorkerNetwork


def network_table(workers: Sequence[WorkerNetwork]) -> Table:
    """One line per worker, server and direction; "?" is what the monitor could not know."""
    table = Table(title="payload, nothing of headers", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("rank", "server", "direction"):
        table.add_column(name)
    for name in ("Mbit/s", "spread", "message us", "delay us", "busy s", "MB"):
        table.add_column(name, justify="right")
    for worker in workers:
        for sample in worker.probe:
            _add(table, worker.rank, sample, f"{sample.direction} (probe)")
        several = len({sample.server for sample in worker.samples}) > 1
        for sample in (*worker.samples, *(worker.links if several else ())):
            _add(table, worker.rank, sample, sample.direction)
    return table


def _add(table: Table, rank: int, sample: Sample, direction: str) -> None:
    estimate = sample.estimate
    table.add_row(
        str(rank),
        "all" if sample.server is None else str(sample.server),
        direction,
        _in(estimate.bandwidth_bps, 1e6),
        _in(estimate.spread_bps, 1e6),
        _in(estimate.message_cost_ns, 1e3),
        _in(estimate.delay_ns, 1e3),
        f"{estimate.busy_ns / 1e9:.2f}",
        f"{estimate.bytes / 1e6:.1f}",
    )


def _in(value: int | None, unit: float) -> str:
    return "?" if value is None else f"{value / unit:.0f}"
