"""``byteprophet simulate --batch``: searches for strategies, and shows the best ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from byteprophet.cli.simulate_places import KEPT, check_places, files_among
from byteprophet.cli.simulate_tables import GIB, ms_long
from byteprophet.errors import UserError
from byteprophet.report.console import progress_bar, table_console
from byteprophet.simulate.calibrate.interval import interval
from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.costs.sources import cluster_with_costs, measured_sources
from byteprophet.simulate.execute.kept import Found, Job, Kept
from byteprophet.simulate.execute.search import pareto, search, undivided_vocabulary
from byteprophet.simulate.execute.simulate import simulate
from byteprophet.simulate.models.load import Source, load_source
from byteprophet.simulate.tree.one_line import parse_strategy
from byteprophet.whole_files import write_whole

_BEST = 5
"""Strategies that are shown besides the Pareto front."""
_MOST_IN_PAGE = 1_000


def search_strategies(job: Job, out: Path | None, json_file: Path | None) -> int:
    """Search, print the best strategies, and write a page about the fastest one that fits."""
    if not 1 <= job.batch <= 1 << 24:
        raise UserError(f"--batch {job.batch}: must be from 1 to {1 << 24}")
    kept = None
    check_places(out, {"--json": json_file}, files_among(job.model, job.cluster, job.costs))
    if out is not None:
        kept = Kept(out / KEPT)
    machines = cluster_with_costs(job.cluster, job.costs)
    source = load_source(job.model, job.sequence)
    with progress_bar("simulate", "strategies") as told:
        found = search(job, source, told, kept)
    front = pareto(found)
    fitting = [one for one in found if one.fits]
    if json_file is not None:
        figures = {
            "schema": 1,
            "costs": measured_sources(machines),
            "strategies": [vars(one) for one in found],
        }
        write_whole(json_file, json.dumps(figures, indent=1) + "\n")
    refused = Counter(one.refused for one in found if one.refused)
    console = table_console()
    tokens = source(1).tokens
    console.print(
        f"{job.model} on {job.gpus} GPUs, {job.batch} samples"
        f"{f' of {tokens:,} tokens' if tokens > 1 else ''} per iteration: "
        f"{len(found) - refused.total()} of {len(found)} strategies can be simulated, "
        f"{len(fitting)} fit into memory\n"
    )
    for measured in measured_sources(machines):
        console.print(f"Costs: {measured}\n", soft_wrap=True)
    console.print(_table(fitting, front))
    console.print("\n* no other strategy is both as fast and as small")
    if vocabulary := undivided_vocabulary(job, source(1)):
        console.print(vocabulary, soft_wrap=True)
    for reason, count in refused.most_common(1):
        console.print(f"Not simulated, {count} times: {reason}", soft_wrap=True)
    if out is not None and fitting:
        for what, file in zip(
            ("page", "trace"), _write(job, source, machines, out, found, front), strict=True
        ):
            console.print(f"{what}: {file}", soft_wrap=True)
    elif out is not None:
        console.print("No page was written, because no strategy fits.")
    return 0


def _table(fitting: Sequence[Found], front: Sequence[Found]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "iteration", "MFU", "memory"):
        table.add_column(name, justify="right")
    table.add_column("strategy", overflow="fold")
    for one in sorted({*fitting[:_BEST], *front}, key=lambda one: one.iteration_ns):
        mark = "*" if one in front else ""
        memory = f"{one.memory_bytes / GIB:.1f} GiB"
        table.add_row(mark, ms_long(one.iteration_ns), f"{one.mfu:.1%}", memory, one.strategy)
    return table


def _write(
    job: Job,
    source: Source,
    cluster: Cluster,
    out: Path,
    found: Sequence[Found],
    front: Sequence[Found],
) -> tuple[Path, Path]:
    """The page and the trace of the fastest strategy that fits."""
    from byteprophet.cli.simulate_page import write_out  # the page takes a moment to load

    best = parse_strategy(front[0].strategy, job.gpus)
    result = simulate(source(best.samples), best, cluster)
    searched = _searched(job, found, front)
    return write_out(out, result, cluster.name, interval(result, cluster), searched)


def _searched(job: Job, found: Sequence[Found], front: Sequence[Found]) -> dict[str, Any]:
    """What the page says about the search."""
    fitting = [one for one in found if one.fits]
    refused = Counter(one.refused for one in found if one.refused)
    return {
        "batch": job.batch,
        "count": len(found),
        "fitting": len(fitting),
        "too_large": sum(not one.fits and not one.refused for one in found),
        "refused": refused.most_common(5),
        "front": [vars(one) for one in front],
        "others": [vars(one) for one in fitting[:_MOST_IN_PAGE] if one not in front],
    }
