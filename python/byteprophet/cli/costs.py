"""``byteprophet costs``: measured costs of a device, for the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from byteprophet.errors import UserError
from byteprophet.report.console import facts_table, progress_of, table_console
from byteprophet.simulate.costs.collect import DEVICES, PASSES, collect, collect_in_job
from byteprophet.simulate.costs.collect_collectives import is_first_rank, ranks_of_job
from byteprophet.simulate.costs.kept_passes import KeptPasses
from byteprophet.simulate.costs.table import write_table
from byteprophet.whole_files import check_writable

_HELP = """Measure what operators cost on a device, for byteprophet simulate.

Example: byteprophet costs collect --out costs.json
"""
_COLLECT_HELP = """Measure matrix products, attention, other operators, memory and launches here.

It needs PyTorch. The table is used with byteprophet simulate --costs FILE, or named in a cluster's
file as costs = "FILE". In a job without servers, or under torchrun, with one rank on each node, it
also measures collectives between the ranks, and rank 0 writes the table. If it is
interrupted, its complete passes stay in FILE.pass-N, and the same command goes on.

Example: byteprophet costs collect --device cuda --out h100.json
"""

_MOST_PASSES = 1000


def register(app: typer.Typer) -> None:
    """Adds the command and its subcommands."""
    group = typer.Typer(help=_HELP, no_args_is_help=True, rich_markup_mode=None)
    group.callback()(lambda: None)
    group.command("collect", help=_COLLECT_HELP)(collect_costs)
    app.add_typer(group, name="costs")


def collect_costs(
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("costs.json"),
    device: Annotated[str, typer.Option(help="cpu or cuda; default: cuda if there is one.")] = "",
    seconds: Annotated[float, typer.Option(help="For matrix products, in all passes.")] = 60.0,
    passes: Annotated[
        int, typer.Option(help="How often all is measured; the least of each time counts.")
    ] = PASSES,
) -> int:
    """See _COLLECT_HELP."""
    if device and device not in DEVICES:
        raise UserError(f"--device {device}: use {' or '.join(DEVICES)}")
    if not 0 < seconds <= 86_400:
        raise UserError(f"--seconds {seconds}: must be more than 0 and at most 86400")
    if not 1 <= passes <= _MOST_PASSES:
        raise UserError(f"--passes {passes}: must be from 1 to {_MOST_PASSES}")
    say, ranks = progress_of("costs collect"), ranks_of_job()
    if is_first_rank():
        check_writable(out)
    kept = KeptPasses(out)
    try:
        if ranks > 1:
            table = collect_in_job(device, seconds, say, passes, kept)
        else:
            table = collect(device, seconds, say, passes, kept)
    except KeyboardInterrupt:
        if is_first_rank() and kept.count():
            say(f"{kept.count()} passes are kept beside {out}: the same command goes on")
        raise
    if table is None:
        return 0
    write_table(out, table)
    kept.remove()
    fastest = max((2 * m * n * k / ns for m, n, k, ns in table.products), default=0.0)
    console = table_console()
    facts = facts_table(table.source)
    facts.add_row("matrix products", f"{len(table.products)}", f"up to {fastest:,.1f} GFLOP/s")
    facts.add_row("memory", f"{table.memory_bytes_per_s / 1e9:,.1f} GB/s", "read and written")
    facts.add_row("launch", f"{table.launch_ns / 1e3:,.1f} µs", "of the host, per operator")
    for name in ("operators", "attention", "transposed", "convolutions", "unaligned"):
        if rows := getattr(table, name):
            facts.add_row(name, f"{len(rows)}", "rows")
    if table.collectives:
        facts.add_row("collectives", f"{len(table.collectives)}", f"between {ranks} ranks")
    console.print(facts)
    console.print(f"saved: {out}", soft_wrap=True)
    return 0
