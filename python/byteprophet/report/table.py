"""Results of a bench as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from byteprophet.network import format_rate
from byteprophet.report.console import lines_text


def _name(result: Mapping[str, Any], files: Mapping[str, str], servers: int) -> str:
    """The strategy's file; or the scheduler, or the runtime that has none, and unequal owners.

    ``files``: the names of strategies' files, by path. ``servers``: how many jobs with servers
    have, as the title says; a strategy's job that has fewer says so itself.
    """
    if result.get("strategy"):
        own = result["servers"]
        return files[result["strategy"]] + (f", {own} server(s)" if 0 < own < servers else "")
    name: str = result["scheduler"] or result["runtime"]
    if result.get("owners"):
        name += f", owners {','.join(map(str, result['owners']))}"
    return f"{name} (tuned)" if result.get("tuned") else name


def _file_names(results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A name for each strategy's file: the shortest end of its path that no other result has."""
    paths = list(dict.fromkeys(r["strategy"] for r in results if r.get("strategy")))
    ends = {path: _ends(Path(path)) for path in paths}
    names = {}
    for path, own in ends.items():
        others = {end for other in paths if other != path for end in ends[other]}
        others |= {r["scheduler"] or r["runtime"] for r in results if not r.get("strategy")}
        names[path] = next((end for end in own if end not in others), path)
    return names


def _ends(path: Path) -> list[str]:
    """Ends of a path, the shortest first: without the name's suffix, then with it."""
    return [
        str(Path(*each.parts[-length:]))
        for each in (path.with_suffix(""), path)
        for length in range(1, len(each.parts) + 1)
    ]


def bench_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """One line per result; "vs stock" is the rate over stock's on the same link, if it was run.

    Below, how much of the largest speedup by its paper DeAR has.
    """
    first = results[0]
    kind = "paced compute, real bytes" if first["paced"] else "real training"
    if first["paced"] and not first["real_time"]:
        kind += "; compute waited for cores (SCHED_RR not permitted)"
    servers = max(result["servers"] for result in results)
    title = f"{first['workload']}: {first['workers']} workers, {servers} server(s), {kind}"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    table.add_column("link")
    table.add_column("scheduler", min_width=len("dear-planned"), overflow="fold")
    for name in ("partition", "iteration ms", "p10-p90", "samples/s", "vs stock", "x bound"):
        table.add_column(name, justify="right")
    for name in ("worker cpu", "idle cpu"):
        table.add_column(name, justify="right")
    stock = {r["bandwidth_bps"]: r["samples_per_s"] for r in results if r["scheduler"] == "stock"}
    files = _file_names(results)
    for result in results:
        iteration = result["iteration_ns"]
        base = stock.get(result["bandwidth_bps"])
        ratio = result["bound_ratio"]
        table.add_row(
            format_rate(result["bandwidth_bps"]),
            _name(result, files, servers),
            str(result["partition_bytes"] or ""),
            f"{iteration['median'] / 1e6:.1f}",
            f"{iteration['p10'] / 1e6:.0f}-{iteration['p90'] / 1e6:.0f}",
            f"{result['samples_per_s']:.1f}",
            f"{result['samples_per_s'] / base:.2f}" if base else "",
            f"{ratio:.3f}" if ratio else "",
            f"{result['worker_cpu_fraction']:.2f}",
            f"{result['idle_cpu_fraction']:.3f}",
        )
    table.caption = lines_text(
        (
            f"dear, {format_rate(result['bandwidth_bps'])}:"
            f" {result['eq7_ns'] / result['iteration_ns']['median']:.3f} of the largest speedup by"
            f" Eq. 6 of its paper, {result['eq6_max_speedup']:.2f} over one worker"
            for result in results
            if "eq6_max_speedup" in result
        ),
        "table.caption",
    )
    return table
