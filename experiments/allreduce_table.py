"""Figures and tables of ``allreduce.py``: every cell, and over all of them the targets."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from allreduce_cells import RUNTIMES, best
from rich import box
from rich.table import Table

from byteprophet.allreduce.bounds import dear_ideal_ns
from byteprophet.allreduce.timing import Link, Timing
from byteprophet.bench import spread
from byteprophet.bench.grid import Cell, Grid
from byteprophet.bench.grid_store import Record, turn_of
from byteprophet.network import payload_bps
from byteprophet.paced.collective_settings import SYNCS
from byteprophet.report.console import table_console


@dataclass(frozen=True)
class CellFigures:
    """Of one cell: iterations of each runtime at its best, per round; ``bandwidth_bps`` as limited.

    ``ideal_ns``: what DeAR could reach, by Eq. 6, or the bound where that is larger.
    ``wire``: bytes that a rank of our runtimes sent or received per iteration, of each job the
    most, over 2 (P - 1) / P of the gradients'.
    """

    cell: Cell
    bandwidth_bps: int
    bound_ns: int
    ideal_ns: int
    rounds_ns: Mapping[str, Mapping[Hashable, Sequence[int]]]
    wire: Sequence[float]

    def median_ns(self, name: str) -> float | None:
        """Over all rounds; None: not measured."""
        rounds_ns = self.rounds_ns.get(name)
        if not rounds_ns:
            return None
        return float(median(time_ns for times_ns in rounds_ns.values() for time_ns in times_ns))

    def ratio(self, above: str, below: str) -> spread.Ratio | None:
        """Of two runtimes' iterations, within rounds; None where they share none."""
        return spread.of_shared_rounds(self.rounds_ns.get(above, {}), self.rounds_ns.get(below, {}))


def figures(grid: Grid, records: Sequence[Record]) -> list[CellFigures]:
    """Of each cell of ``grid`` that has ``records``, which are of the comparison."""
    found = []
    for cell in grid.cells:
        of_cell = [record for record in records if record["cell"] == cell.name]
        if not of_cell:
            continue
        rounds_ns: dict[str, dict[Hashable, list[int]]] = {}
        for name in RUNTIMES:
            fastest = best(name, of_cell)[:1]
            for record in of_cell:
                if fastest and record["variant"] == fastest[0].label:
                    rounds_ns.setdefault(name, {})[turn_of(record)] = record["iteration_ns"]
        workload = cell.load_workload()
        bandwidth_bps = cell.bandwidth_bps(workload)
        rate_bps = payload_bps(bandwidth_bps)
        assert bandwidth_bps is not None
        assert rate_bps is not None
        ideal_ns = dear_ideal_ns(Timing.of_workload(workload, Link(cell.workers, rate_bps)))
        least_bytes = 2 * (cell.workers - 1) / cell.workers * workload.size_bytes
        wire = [
            max(record["sent_bytes"], record["received_bytes"]) / least_bytes
            for record in of_cell
            if record["runtime"] in SYNCS
        ]
        bound_ns = of_cell[0]["bound_ns"]
        found.append(CellFigures(cell, bandwidth_bps, bound_ns, ideal_ns, rounds_ns, wire))
    return found


def targets(cells: Sequence[CellFigures]) -> list[tuple[str, float | None, str]]:
    """What, its value over all ``cells`` that have it, and what it should be."""

    def over_bound(name: str) -> list[float]:
        pairs = [(cell.median_ns(name), cell.bound_ns) for cell in cells]
        return [time_ns / bound_ns for time_ns, bound_ns in pairs if time_ns]

    def ratios(above: str, below: str, model: str = "") -> list[float]:
        chosen = [cell for cell in cells if model in ("", cell.cell.workload)]
        found = [cell.ratio(above, below) for cell in chosen]
        return [each.value for each in found if each is not None]

    def mean(values: Sequence[float]) -> float:
        return float(np.exp(np.mean(np.log(values))))

    dear = [(cell.ideal_ns, cell.median_ns("dear")) for cell in cells]
    planned, gains = over_bound("dear-planned"), ratios("ddp", "dear-planned")
    resnet = ratios("ddp", "dear-planned", "resnet50")
    behind = ratios("dear", "dear-planned")
    wire = [share for cell in cells for share in cell.wire]
    shares = [ideal_ns / time_ns for ideal_ns, time_ns in dear if time_ns]
    return [
        ("dear over Eq. 6's maximum, median", median(shares) if shares else None, "from 0.97"),
        ("dear-planned over the bound, median", median(planned) if planned else None, "to 1.03"),
        ("dear-planned over the bound, worst", max(planned, default=None), "to 1.06"),
        ("ddp over dear-planned, resnet50, mean", mean(resnet) if resnet else None, "from 1.18"),
        ("ddp over dear-planned, all, mean", mean(gains) if gains else None, "from 1.12"),
        ("ddp over dear-planned, all, least", min(gains, default=None), "from 0.99"),
        ("dear over dear-planned, least", min(behind, default=None), "from 1.00"),
        ("bytes on our wires, median", median(wire) if wire else None, "0.95 to 1.05"),
        ("bytes on our wires, most", max(wire, default=None), "0.95 to 1.05"),
    ]


def print_table(grid: Grid, records: Sequence[Record]) -> None:
    """All cells, and the targets."""
    cells = figures(grid, records)
    console = table_console(190)
    names = [name for name in RUNTIMES if any(name in cell.rounds_ns for cell in cells)]
    table = Table(box=box.SIMPLE, title="iterations in s (over the bound)")
    for title in ("cell", "link", "bound", *names, "dear of Eq. 6", "ddp/planned"):
        table.add_column(title, justify="left" if title == "cell" else "right")
    for cell in cells:
        table.add_row(*_row(cell, names))
    console.print(table)
    summary = Table("figure", "value", "should be", box=box.SIMPLE)
    for what, value, wanted in targets(cells):
        summary.add_row(what, "-" if value is None else f"{value:.3f}", wanted)
    console.print(summary)


def _row(cell: CellFigures, names: Sequence[str]) -> list[str]:
    texts = [
        cell.cell.name,
        f"{cell.bandwidth_bps / 1e6:.0f} Mbit/s",
        f"{cell.bound_ns / 1e9:.3f}",
    ]
    for name in names:
        time_ns = cell.median_ns(name)
        texts.append(
            "-" if time_ns is None else f"{time_ns / 1e9:.3f} ({time_ns / cell.bound_ns:.3f})"
        )
    dear_ns, gain = cell.median_ns("dear"), cell.ratio("ddp", "dear-planned")
    texts.append("-" if dear_ns is None else f"{cell.ideal_ns / dear_ns:.3f}")
    if gain is None:
        return [*texts, "-"]
    low, high = gain.interval
    return [*texts, f"{gain.value:.3f} [{low:.3f}, {high:.3f}]"]
