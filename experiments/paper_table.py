"""A table of the Prophet paper, measured here: what is in it, and the arithmetic of its figures.

The jobs and their records are a grid's (``byteprophet bench --grid``), in its phase "base": every
row of a table is a cell, every policy a variant. Beside each row stand the paper's figures, the
bound, and what the engine predicts, which knows nothing of two cores and is called simulated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from byteprophet import bound
from byteprophet.bench.grid import Cell, Grid, slower
from byteprophet.bench.grid_figures import CPU_LIMIT
from byteprophet.bench.grid_jobs import Variant
from byteprophet.bench.grid_phases import PROPHET, four_megabytes_twice
from byteprophet.engine import paced_job, simulate
from byteprophet.job import Job
from byteprophet.network import format_rate

SCHEMA = 1
PAPER_COMPUTE_NS = {
    # Of a batch of 64, forward and backward: the rates that the paper's jobs have where the link
    # does not limit them, 72 samples/s (Table 2) and 220 samples/s (section 5.3, 10 Gbit/s).
    "resnet50": 890_000_000,
    "resnet18": round(64e9 / 220),
}

_P3_4MB = four_megabytes_twice("p3")
assert _P3_4MB is not None
POLICIES: Mapping[str, Variant] = {
    "prophet": Variant("prophet"),
    "prophet-paper": Variant("prophet-paper"),
    "bytescheduler": Variant("bytescheduler"),
    "bytescheduler-reduce": Variant("bytescheduler-reduce"),
    "p3": Variant("p3"),
    "p3 at 4 MB": _P3_4MB,
    "fifo": Variant("fifo"),
    "stock": Variant("stock"),
}
"""Columns. ByteScheduler as the paper ran it is "bytescheduler-reduce", P3 "p3 at 4 MB"."""

PAPER_NAMES = {"bytescheduler-reduce": "bytescheduler", "p3 at 4 MB": "p3", "stock": "fifo"}
"""With whose figure of the paper a column is compared, if not with its own name's."""

_SHARED = (
    "Here the server's link has the limit of a worker's, and each worker its even part of it. The "
    "paper's rates ask for that: with all workers at 1000 Mbit/s its Prophet takes 2.31 s an "
    "iteration, and 2.42 s with one of them at 500 Mbit/s; ResNet-50's bytes take 0.86 s one way "
    "at 1000 Mbit/s, 1.71 s at 500."
)

Figures = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One row. ``paper``: samples/s per worker that the paper prints, by policy.

    ``real`` false: only simulated. ``server_bandwidth_bps`` limits servers in the simulation.
    """

    label: str
    cell: Cell
    batch_size: int
    paper: Mapping[str, float] = field(default_factory=dict)
    real: bool = True
    server_bandwidth_bps: int | None = None


@dataclass(frozen=True)
class Table:
    """``axis`` names the labels, ``notes`` say what must be known to read the figures."""

    name: str
    title: str
    axis: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    slowed: int = 1

    def grid(self, iterations: int) -> Grid:
        """The cells of the rows that are run."""
        cells = tuple(replace(row.cell, name=row.label) for row in self.rows if row.real)
        return Grid(self.name, cells, iterations=iterations)


def slow_down(table: Table, times: int) -> Table:
    """The table with its cells ``slowed``; rates are given as if nothing had been."""
    if times == 1:
        return table
    rows = []
    for row in table.rows:
        limit_bps = row.server_bandwidth_bps and row.server_bandwidth_bps // times
        rows.append(replace(row, cell=row.cell.slowed(times), server_bandwidth_bps=limit_bps))
    return replace(table, name=f"{table.name}-slowed{times}", rows=tuple(rows), slowed=times)


def share_links(table: Table) -> Table:
    """The workers' limit holds for the server's link, too, which they share evenly.

    A slow worker keeps its rate.
    """
    rows = tuple(
        replace(
            row,
            cell=replace(
                row.cell, link=slower(str(row.cell.link), row.cell.workers), name=row.cell.name
            ),
            server_bandwidth_bps=None,
        )
        for row in table.rows
    )
    return replace(
        table,
        name=f"{table.name}-shared",
        title=f"{table.title}; the server's link has the worker's limit",
        rows=rows,
        notes=(*table.notes, _SHARED),
    )


def compare(table: Table, cells: Sequence[Figures], simulated: bool = True) -> list[Figures]:
    """One entry per row: ``cells``, as a grid's report has them, beside the paper's figures.

    Rates are samples/s per worker, ``None`` where nothing was measured. ``over``: prophet's speed
    over the policy's, ours (within each round, with its 95% interval) and the paper's.
    """
    measured = {cell["cell"]: cell for cell in cells}
    return [_row(table, row, measured.get(row.label), simulated) for row in table.rows]


def _row(table: Table, row: Row, cell: Figures | None, simulated: bool) -> Figures:
    found = {policy["variant"]: policy for policy in cell["policies"]} if cell else {}
    workload = row.cell.load_workload()
    rate_of = _Rate(row.batch_size * table.slowed)
    bound_ns = cell["bound_ns"] if cell else bound.bound_ns(_job(row, Variant(PROPHET)))
    return {
        "label": row.label,
        "workload": row.cell.workload,
        "link": format_rate(row.cell.bandwidth_bps(workload)),
        "slow_worker": row.cell.slow_worker,
        "workers": row.cell.workers,
        "servers": row.cell.servers,
        "batch_size": row.batch_size,
        "compute_ns": workload.forward_ns + workload.backward_ns,
        "bound_ns": bound_ns,
        "bound_rate": rate_of(bound_ns),
        "paper": dict(row.paper),
        "policies": {
            name: _policy(row, name, found.get(variant.label), rate_of)
            | ({"simulated_rate": _simulated(row, variant, rate_of)} if simulated else {})
            for name, variant in POLICIES.items()
        },
    }


def _policy(row: Row, name: str, policy: Figures | None, rate_of: _Rate) -> Figures:
    paper = row.paper.get(PAPER_NAMES.get(name, name))
    ours = row.paper.get(PROPHET)
    figures: Figures = {
        "rate": None,
        "paper_rate": paper,
        "over": None,
        "paper_over": round(ours / paper, 3) if ours and paper and name != PROPHET else None,
    }
    if policy is None:
        return figures
    return figures | {
        "rate": rate_of(policy["iteration_ns"]["median"]),
        "iteration_ns": policy["iteration_ns"],
        "jobs": policy["jobs"],
        "bound_ratio": policy["bound_ratio"],
        "over": policy["over_prophet"] if name != PROPHET else None,
        "machine_cpu_fraction": policy["machine_cpu_fraction"],
        "cpu_limited": policy["machine_cpu_fraction"] >= CPU_LIMIT,
    }


@dataclass(frozen=True)
class _Rate:
    """Samples per second and worker from nanoseconds per iteration."""

    samples: int

    def __call__(self, iteration_ns: float) -> float:
        # Four digits are more than can be told apart.
        rate = self.samples * 1e9 / iteration_ns
        return round(rate, max(0, 3 - math.floor(math.log10(rate))))


def _job(row: Row, variant: Variant) -> Job:
    workload = row.cell.load_workload()
    return paced_job(
        workload,
        variant.scheduler,
        variant.settings,
        workers=row.cell.workers,
        servers=row.cell.servers,
        bandwidth_bps=row.cell.bandwidth_bps(workload),
        worker_bandwidth_bps=row.cell.worker_bandwidth_bps,
        server_bandwidth_bps=row.server_bandwidth_bps,
    )


def _simulated(row: Row, variant: Variant, rate_of: _Rate) -> float:
    run = simulate(_job(row, variant))
    return rate_of(run.median_ns)
