"""The tables of ``processor_time.py``, from its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from statistics import median
from typing import Any

import call_counts
import perf_terms
from rich import box
from rich.console import Console
from rich.table import Table

from byteprophet.network import PAYLOAD_SHARE

_IPERF, _ALONE = "iperf3", "alone"
_WIDTH = 118
_SHOWN_OF_THREADS = 0.03  # of a job's processor time
_LINKS_GBPS = (10, 25, 100, 400)

Row = dict[str, Any]


def print_tables(rows: Sequence[Row], cores: int) -> None:
    """Totals, what links need, terms, threads and calls; what was not measured is left out.

    ``cores``: of the machine that all roles shared.
    """
    console = Console(width=_WIDTH)
    names = [name for name in dict.fromkeys(row["runtime"] for row in rows) if name != _ALONE]
    console.print(_totals(rows, names))
    console.print(_cores(rows, names))
    console.print(_rates(rows, [name for name in names if name != _IPERF], cores))
    profiled = [name for name in names if any("samples" in row for row in _of(rows, name))]
    if profiled:
        console.print(_terms(rows, profiled))
        console.print(_threads(rows, profiled))
    counted = [name for name in names if _of(rows, name, "calls")]
    if counted:
        console.print(_calls(rows, counted))


def per_gb(rows: Sequence[Row], row: Row, value: Callable[[Row], float]) -> float:
    """``value`` of a job per gigabyte it moved, less that of ``alone`` in the same round."""
    if row["runtime"] == _IPERF:
        return value(row)
    alone = _same_job(rows, row)
    own = 0.0 if alone is None else value(alone) / alone["iterations"] * row["iterations"]
    return float((value(row) - own) / row["moved_bytes"] * 1e9)


def used_s(row: Row) -> float:
    """Processor seconds of all roles; of iperf3: per gigabyte."""
    if row["runtime"] == _IPERF:
        return float(row["processor_s_per_gb"])
    return float(row["user_s"] + row["system_s"])


def ratio(rows: Sequence[Row], row: Row) -> float:
    """Processor seconds per gigabyte over iperf3's of the same round."""
    (flow,) = (each for each in _of(rows, _IPERF) if each["round"] == row["round"])
    return per_gb(rows, row, used_s) / used_s(flow)


def tensor_us(rows: Sequence[Row], small: Row, workers: int = 2) -> float:
    """Processor microseconds per small tensor, worker and iteration, beyond what bytes cost."""
    (large,) = (
        row for row in _of(rows, small["runtime"], "large") if row["round"] == small["round"]
    )
    of_bytes_s = per_gb(rows, large, used_s) * small["moved_bytes"] / 1e9
    all_s = per_gb(rows, small, used_s) * small["moved_bytes"] / 1e9
    updates = small["tensors"] * workers * small["iterations"]
    return float((all_s - of_bytes_s) * 1e6 / updates)


def cores_of_worker(rows: Sequence[Row], row: Row, link_bps: float) -> float:
    """Cores that a worker needs to keep its link busy in both directions.

    A byte between a worker and a server concerns one worker, a byte between workers two of them.
    """
    if row["runtime"] == _IPERF:
        all_s, served = used_s(row), False
    else:
        all_s, served = per_gb(rows, row, partial(_of_role, kind="worker")), _served(row)
    gigabytes_per_s = link_bps * PAYLOAD_SHARE / 8e9
    return gigabytes_per_s * all_s * (2 if served else 1)


def rates(row: Row, cores: int) -> tuple[float, float]:
    """Payload per second of a job in GB: if it kept all cores busy, and as measured.

    Both count the updates of the training, which ``alone`` has, too.
    """
    gigabytes = row["moved_bytes"] / 1e9
    return gigabytes / (used_s(row) / cores), gigabytes / float(row["wall_s"])


def term_s(rows: Sequence[Row], row: Row, term: str) -> float:
    """Seconds per gigabyte of ``term`` in a job with a profile."""
    return per_gb(
        rows,
        row,
        lambda each: (
            used_s(each) * each["samples"].get(term, 0) / max(1, sum(each["samples"].values()))
        ),
    )


def _totals(rows: Sequence[Row], names: Sequence[str]) -> Table:
    table = Table("runtime", box=box.SIMPLE, title="Processor seconds per GB moved")
    for name in ("s/GB", "of iperf3", "user", "system", "worker", "server", "us/tensor"):
        table.add_column(name, justify="right")
    table.add_column("waits/GB", justify="right")
    table.add_column("preempted/GB", justify="right")
    for name in names:
        large = _of(rows, name, "large") or _of(rows, name, "stream")

        def middle(value: Callable[[Row], float], large: Sequence[Row] = large) -> float:
            return median(value(row) for row in large)

        total = f"{middle(partial(per_gb, rows, value=used_s)):.2f}"
        if name == _IPERF:
            table.add_row(name, total, "1.00")
            continue
        ratios = [ratio(rows, row) for row in large]
        small = _of(rows, name, "small")
        table.add_row(
            name,
            total,
            f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
            *(
                f"{middle(partial(per_gb, rows, value=itemgetter(key))):.2f}"
                for key in ("user_s", "system_s")
            ),
            *(
                f"{middle(partial(per_gb, rows, value=partial(_of_role, kind=kind))):.2f}"
                for kind in ("worker", "server")
            ),
            f"{median(tensor_us(rows, row) for row in small):.0f}" if small else "",
            *(
                f"{middle(partial(per_gb, rows, value=itemgetter(key))):.0f}"
                for key in ("waits", "preempted")
            ),
        )
    return table


def _cores(rows: Sequence[Row], names: Sequence[str]) -> Table:
    table = Table(
        "runtime", box=box.SIMPLE, title="Cores of a worker whose link is busy in both directions"
    )
    for gbps in _LINKS_GBPS:
        table.add_column(f"{gbps} Gbit/s", justify="right")
    for name in names:
        large = _of(rows, name, "large") or _of(rows, name, "stream")
        needed = (
            median(cores_of_worker(rows, row, gbps * 1e9) for row in large) for gbps in _LINKS_GBPS
        )
        table.add_row(name, *(f"{each:.1f}" for each in needed))
    return table


def _rates(rows: Sequence[Row], names: Sequence[str], cores: int) -> Table:
    table = Table(
        "runtime", box=box.SIMPLE, title=f"All roles on {cores} cores, links without a limit"
    )
    for column in ("GB/s if cores are the limit", "GB/s measured", "measured over limit"):
        table.add_column(column, justify="right")
    for name in names:
        pairs = [rates(row, cores) for row in _of(rows, name, "large")]
        table.add_row(
            name,
            f"{median(limit for limit, _ in pairs):.2f}",
            f"{median(measured for _, measured in pairs):.2f}",
            f"{median(measured / limit for limit, measured in pairs):.2f}",
        )
    return table


def _terms(rows: Sequence[Row], names: Sequence[str]) -> Table:
    table = Table("term", box=box.SIMPLE, title="Processor seconds per GB by term")
    for name in names:
        table.add_column(name, justify="right")
    profiled = {name: next(row for row in _of(rows, name) if "samples" in row) for name in names}
    for term in perf_terms.TERMS:
        seconds = [term_s(rows, profiled[name], term) for name in names]
        if any(abs(each) >= 0.005 for each in seconds):
            table.add_row(term, *(f"{each:.2f}" for each in seconds))
    return table


def _threads(rows: Sequence[Row], names: Sequence[str]) -> Table:
    table = Table(
        "runtime",
        "role",
        "thread",
        box=box.SIMPLE,
        title="Threads that used most, with training",
    )
    for name in ("user s/GB", "system s/GB", "waits/GB"):
        table.add_column(name, justify="right")
    for name in names:
        row = next(row for row in _of(rows, name) if "samples" in row)
        gigabytes = row["moved_bytes"] / 1e9
        for thread in row["threads"]:
            if thread["user_s"] + thread["system_s"] < _SHOWN_OF_THREADS * used_s(row):
                continue
            table.add_row(
                name,
                thread["role"],
                thread["thread"],
                f"{thread['user_s'] / gigabytes:.2f}",
                f"{thread['system_s'] / gigabytes:.2f}",
                f"{thread['waits'] / gigabytes:.0f}",
            )
    return table


def _calls(rows: Sequence[Row], names: Sequence[str]) -> Table:
    table = Table("runtime", box=box.SIMPLE, title="System calls per MB moved")
    for kind in call_counts.KINDS:
        table.add_column(kind, justify="right")
    for name in names:
        (row,) = _of(rows, name, "calls")
        megabytes = row["moved_bytes"] / 1e6
        counts = (row["calls"].get(kind, 0) / megabytes for kind in call_counts.KINDS)
        table.add_row(name, *(f"{each:.1f}" for each in counts))
    return table


def _served(row: Row) -> bool:
    return "server" in row["role_s"]


def _of_role(row: Row, kind: str) -> float:
    return float(row["role_s"].get(kind, 0.0))


def _of(rows: Sequence[Row], runtime: str, shape: str | None = None) -> list[Row]:
    return [
        row
        for row in rows
        if row["runtime"] == runtime and (shape is None or row["shape"] == shape)
    ]


def _same_job(rows: Sequence[Row], row: Row) -> Row | None:
    """The job of ``alone`` in the same round with the same parameters."""
    found = [each for each in _of(rows, _ALONE, row["shape"]) if each["round"] == row["round"]]
    return found[0] if found else None
