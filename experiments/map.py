"""Who wins where: simulated jobs over delays and message costs, under every scheduler.

    python experiments/map.py

Each cell is a model, a link (how long all its bytes take one way, in times of its compute), a delay
and a cost per message. In the engine, on virtual time, every scheduler runs there with its default
settings, the baselines also with each of their tuning grid's, and prophet with other partition
sizes: the best is kept. Finished cells are kept in the results file (``rows.py``): started again,
the script goes on where it stopped. A few minutes on an idle core.

Writes ``map.json`` (docs/formats.md) and ``map.png`` to experiments/results.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from map_plot import draw_map
from recorded import RESULTS
from rows import Rows
from script import progress_of, run_script

from byteprophet import schedulers
from byteprophet.bench.grid import Cell as GridCell
from byteprophet.bound import bound_ns
from byteprophet.cli.lists import split
from byteprophet.engine import paced_job, simulate, tuning_grid
from byteprophet.errors import UserError
from byteprophet.job import Costs, Job
from byteprophet.report.plot import save
from byteprophet.workload import load

WORKERS, SERVERS = 2, 1
_WARMUP_ITERATIONS, _ITERATIONS = 5, 3
_DELAYS_US = (10, 50, 200, 1000, 5000)
_COSTS_US = (5, 20, 100, 500)
_SETTINGS = {"simulated": True, "workers": WORKERS, "servers": SERVERS}

_progress = progress_of("map")


@dataclass(frozen=True)
class Cell:
    """One network under one model."""

    workload: str
    link: float
    delay_ns: int
    message_cost_ns: int

    @property
    def bandwidth_bps(self) -> int | None:
        """Of each worker's link."""
        return GridCell(self.workload, self.link).bandwidth_bps(load(self.workload))

    def job(self, scheduler: str, settings: Mapping[str, int]) -> Job:
        """The job of a scheduler."""
        return paced_job(
            load(self.workload),
            scheduler,
            settings,
            workers=WORKERS,
            servers=SERVERS,
            bandwidth_bps=self.bandwidth_bps,
            costs=Costs(delay_ns=self.delay_ns, message_cost_ns=self.message_cost_ns),
        )


def main(arguments: Sequence[str]) -> None:
    """Simulate what is missing, then draw."""
    options = _parse(arguments)
    cells = list(_cells(options))
    rows = Rows(options.out / "map.json", _SETTINGS)
    missing = [cell for cell in cells if not rows.of(asdict(cell))]
    for number, cell in enumerate(missing, start=1):
        _progress(
            f"cell {number} of {len(missing)}: {cell.workload}, link {cell.link:g}, "
            f"delay {cell.delay_ns / 1e3:g} us, message cost {cell.message_cost_ns / 1e3:g} us"
        )
        rows.add(run_cell(cell))
    picture = options.out / "map.png"
    save(draw_map([row for cell in cells for row in rows.of(asdict(cell))]), picture)
    print(f"saved: {options.out / 'map.json'}, {picture}")


def run_cell(cell: Cell) -> dict[str, Any]:
    """All schedulers on one network."""
    return {
        **asdict(cell),
        "bandwidth_bps": cell.bandwidth_bps,
        "bound_ns": bound_ns(cell.job(schedulers.DEFAULT, {})),
        "schedulers": {name: _best(cell, name) for name in schedulers.names},
    }


def _best(cell: Cell, scheduler: str) -> dict[str, Any]:
    grid = tuning_grid(scheduler if scheduler != schedulers.DEFAULT else "fifo")  # partition sizes
    candidates: list[dict[str, int]] = [{}, *(settings for settings in grid if settings)]
    times_ns = [
        simulate(
            cell.job(scheduler, settings),
            iterations=_ITERATIONS,
            warmup_iterations=_WARMUP_ITERATIONS,
        ).median_ns
        for settings in candidates
    ]
    best = min(range(len(candidates)), key=times_ns.__getitem__)
    return {
        "default_ns": times_ns[0],
        "iteration_ns": times_ns[best],
        "settings": candidates[best],
    }


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Simulate all schedulers over delays and message costs; draw who wins where.",
        epilog="example: python experiments/map.py --workloads bert-base --links 0.5,1.3",
    )
    parser.add_argument("--workloads", default="resnet50,vgg19", help="built-in ones, or files")
    parser.add_argument("--links", default="0.5,1,1.3", help="transfer time over compute time")
    parser.add_argument("--quick", action="store_true", help="four cells, to try this script out")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory for the results")
    return parser.parse_args(arguments)


def _cells(options: argparse.Namespace) -> Iterator[Cell]:
    workloads = split(options.workloads, "--workloads")
    links = [_link(text) for text in split(options.links, "--links")]
    delays_us: Sequence[int] = _DELAYS_US
    costs_us: Sequence[int] = _COSTS_US
    if options.quick:
        workloads, links = workloads[:1], links[:1]
        delays_us, costs_us = delays_us[::4], costs_us[::3]
    for name in workloads:
        load(name)
    for workload, link, delay_us, cost_us in itertools.product(
        workloads, links, delays_us, costs_us
    ):
        yield Cell(workload, link, delay_us * 1000, cost_us * 1000)


def _link(text: str) -> float:
    try:
        link = float(text)
    except ValueError:
        link = math.nan
    if not 0.01 <= link <= 100:
        raise UserError(f"--links {text!r}: must be numbers from 0.01 to 100")
    return link


if __name__ == "__main__":
    run_script(main)
