"""What the scripts of the paper's tables do: run what is missing, compare, write, print.

Records stand in ``runs/NAME`` (docs/formats.md, "Results of a grid"); the results, ``NAME.json``,
``NAME.md`` and ``NAME.png``, in experiments/results.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paper_markdown import to_markdown
from paper_plot import draw_table
from paper_table import POLICIES, SCHEMA, Table, compare, share_links, slow_down
from recorded import RESULTS
from results_file import write_results
from script import progress_of

from byteprophet.bench.grid_phases import in_turn
from byteprophet.bench.grid_report import make_report
from byteprophet.bench.grid_run import namespaces_for, prepare, run_jobs
from byteprophet.cli.lists import split
from byteprophet.errors import UserError
from byteprophet.report.plot import save
from byteprophet.whole_files import write_whole

_PHASE = "base"


def table_script(table: Table) -> Callable[[Sequence[str]], None]:
    """The ``main`` of a table's script."""

    def main(arguments: Sequence[str]) -> None:
        options = _parse(table, arguments)
        chosen = share_links(table) if options.shared else table
        chosen = slow_down(chosen, options.slowed)
        records = options.records or Path("runs") / chosen.name
        if not options.report:
            _run(chosen, options, records)
        _report(chosen, options, records)

    return main


def _run(table: Table, options: argparse.Namespace, records: Path) -> None:
    labels = _chosen(options.rows, [row.label for row in table.rows if row.real], "--rows")
    policies = _chosen(options.policies, list(POLICIES), "--policies")
    if options.rounds < 1:
        raise UserError("--rounds must be at least 1")
    asked = replace(table, rows=tuple(row for row in table.rows if row.label in labels))
    grid = asked.grid(options.iterations)
    namespaces = namespaces_for(grid)
    cells = prepare(grid, records)
    variants = [[POLICIES[name] for name in policies]] * len(cells)
    jobs = in_turn(_PHASE, cells, variants, options.rounds)
    run_jobs(grid, cells, jobs, records, namespaces, progress_of(table.name))


def _report(table: Table, options: argparse.Namespace, records: Path) -> None:
    report = make_report(table.grid(options.iterations), records)
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "table": table.name,
        "title": table.title,
        "axis": table.axis,
        "notes": list(table.notes),
        "slowed": table.slowed,
        "paced": True,
        "machines": report["machines"],
        "code": report["code"],
        "code_now": report["code_now"],
        "rows": compare(table, report["cells"]),
    }
    paths = [options.out / f"{table.name}.{suffix}" for suffix in ("json", "md", "png")]
    write_results(paths[0], result)
    markdown = to_markdown(result)
    write_whole(paths[1], markdown)
    save(draw_table(result), paths[2])
    print(markdown)
    print(f"saved: {', '.join(map(str, paths))}")


def _chosen(text: str | None, known: Sequence[str], option: str) -> list[str]:
    """Of ``known``, in its order, those in ``text``; all, if there is none."""
    if text is None:
        return list(known)
    wanted = split(text, option)
    for each in wanted:
        if each not in known:
            raise UserError(f"{option} {each!r}: choose from {', '.join(known)}")
    return [each for each in known if each in wanted]


def _parse(table: Table, arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=f"{table.title}: runs what is missing, then prints it beside the paper's.",
        epilog=f"example: python experiments/{table.name}.py --rounds 3",
    )
    parser.add_argument("--rounds", type=int, default=2, help="jobs per row and policy (2)")
    parser.add_argument("--iterations", type=int, default=3, help="measured ones of a job (3)")
    parser.add_argument("--rows", help="labels of the rows to run, separated by commas (all)")
    parser.add_argument(
        "--policies", help=f"to run, separated by commas (all: {', '.join(POLICIES)})"
    )
    parser.add_argument(
        "--slowed",
        type=_positive,
        default=1,
        help="compute takes so many times as long and links are as many times slower: where two "
        "cores are the limit, ratios between policies show",
    )
    parser.add_argument(
        "--shared",
        action="store_true",
        help="the limit holds for the server's link, too: each worker's is its part of that",
    )
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--records", type=Path, help=f"of jobs (runs/{table.name})")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory for the results")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value
