"""What the optimizer gains on real models, beside what it foretells and what others reach.

    python experiments/gains.py

In each cell a model trains on links on which its bytes take 0.5 to 1.5 of its compute. The job runs
recorded with the defaults of its runtime: BytePS through our front, first in first out;
DistributedDataParallel with its 25 MB; our all-reduce as it plans its buckets. The optimizer
searches, runs a few candidates (``--trials``), and states a gain with an interval. Its choice, the
recorded job and the opponents (``gains_opponents.py`` says how they are tuned) then run in turn,
round after round. If it chose regions to compile, so do its choice without them and its choice with
the whole model compiled.

Printed are, per cell, the stated and the measured gain and whether the interval held; then, per set
of cells, errors, coverage, and the geometric means of the gains over the defaults and over the best
opponent of each cell; then what regions bring. ``gains_cells.py`` has the cells and says which set
is for what. Why a strategy was chosen is on the page of each cell, OUT/CELL/optimized.

A cell's result is saved as OUT/CELL/result.json when the cell is done, and what its steps have made
is kept: started again, with the same options and code, the script measures what is missing.
``--minutes 50`` begins no cell after so many minutes; ``--report`` runs nothing. A cell that fails
is named in the end and does not stop the others. A cell makes 20 to 35 jobs of 30 iterations: 7 to
12 minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatch
from pathlib import Path

from gains_cell import Effort, measure_cell
from gains_cells import CELLS, Cell
from gains_tables import Result, print_tables
from measured_with import check_measured_with
from results_file import write_results
from script import check_least, print_code_notes, progress_of, run_script

from byteprophet.errors import JobFailed, UserError, warn
from byteprophet.input_files import read_json
from byteprophet.network import why_not_permitted


def main(arguments: Sequence[str]) -> None:
    """Measure what is missing, print."""
    options = _parse(arguments)
    check_least(options, iterations=1, rounds=1, trials=1, budget_s=1)
    cells = chosen_cells(options.cells)
    if options.list:
        print("\n".join(f"{cell.name} ({cell.kind})" for cell in cells))
        return
    failed = []
    if not options.report:
        reason = why_not_permitted()
        if reason is not None:
            raise UserError(f"limited links need network namespaces: {reason}")
        failed = measure(cells, options)
    results = [result for cell in cells if (result := saved(options.out, cell)) is not None]
    print_tables(results)
    print_code_notes(results)
    if failed:
        raise JobFailed(f"{len(failed)} cell(s) failed: {', '.join(failed)}")


def chosen_cells(patterns: str) -> list[Cell]:
    """The cells whose name or set one of the patterns, separated by commas, matches.

    UserError names a pattern that matches none.
    """
    found: dict[str, Cell] = {}
    for pattern in patterns.split(","):
        matching = [
            cell for cell in CELLS if fnmatch(cell.name, pattern) or fnmatch(cell.kind, pattern)
        ]
        if not matching:
            raise UserError(f"--cells {pattern!r}: matches no cell; --list lists them")
        found.update((cell.name, cell) for cell in matching)
    return [*found.values()]


def measure(cells: Sequence[Cell], options: argparse.Namespace) -> list[str]:
    """Measure the cells that have no result; the names of those that failed.

    Raises ``UserError`` before anything runs if a cell was measured or begun with another effort.
    """
    effort = Effort(
        options.iterations,
        options.rounds,
        options.trials,
        options.budget_s,
        options.opponents,
        options.allow,
    )
    if options.quick:
        effort = replace(effort, iterations=20, rounds=1, trials=1, budget_s=10.0)
    for cell in cells:
        check_effort(options.out, cell, effort)
    until_s = time.monotonic() + 60 * options.minutes
    failed = []
    for number, cell in enumerate(cells, 1):
        if saved(options.out, cell) is not None:
            continue
        if time.monotonic() > until_s:
            warn(f"{options.minutes:g} minutes are over: start the script again for the rest")
            break
        say = progress_of(f"{cell.name} ({number} of {len(cells)})")
        try:
            result = measure_cell(cell, options.out, effort, say)
        except Exception as failure:  # noqa: BLE001 (the other cells do not depend on this one)
            warn(f"{cell.name}: {type(failure).__name__}: {failure}")
            failed.append(cell.name)
            continue
        write_results(_path(options.out, cell), result)
    return failed


def check_effort(out: Path, cell: Cell, effort: Effort) -> None:
    """Raise ``UserError`` if what there is of a cell was not measured with ``effort``."""
    result = saved(out, cell)
    if result is None:
        check_measured_with(out / cell.name, asdict(effort))
        return
    was, now = result.get("effort", {}), asdict(effort)
    differs = [name for name, value in now.items() if was.get(name) != value]
    if differs:
        raise UserError(
            f"{_path(out, cell)}: was measured with another {' and '.join(differs)}: use another "
            "--out, or --report"
        )


def saved(out: Path, cell: Cell) -> Result | None:
    """The result of a cell; None if it has none yet."""
    path = _path(out, cell)
    if not path.exists():
        return None
    result: Result = read_json(path)
    return result


def _path(out: Path, cell: Cell) -> Path:
    return out / cell.name / "result.json"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure what the optimizer gains on real models.",
        epilog="example: python experiments/gains.py --cells 'tune' --rounds 2",
    )
    parser.add_argument("--cells", default="*", help="names or sets, with wildcards, by commas")
    parser.add_argument("--list", action="store_true", help="print the cells, run nothing")
    parser.add_argument("--iterations", type=int, default=30, help="of each job")
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each way in a cell")
    parser.add_argument("--trials", type=int, default=3, help="of the optimizer, and of each other")
    parser.add_argument("--budget-s", type=float, default=300.0, help="of each search")
    parser.add_argument("--allow", default=Effort.allow, help="passes that may change results")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no cell after so many"
    )
    parser.add_argument(
        "--no-opponents", dest="opponents", action="store_false", help="only the default"
    )
    parser.add_argument("--quick", action="store_true", help="one round, one trial, 20 iterations")
    parser.add_argument("--out", type=Path, default=Path("runs/gains"), help="of the results")
    parser.add_argument("--report", action="store_true", help="run nothing, print what there is")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_script(main)
