"""Gradients over data links or over ZeroMQ (``BYTEPROPHET_VAN``): which should be the default.

    python experiments/van.py
    python experiments/van.py --cells '*-2w1s,vgg19-*-4w2s' --rounds 4

A cell is a paced workload, the rate of the workers' links, and so many workers and servers. Where
links are limited, the compute takes as long as the bytes do in one direction, and 150 ms otherwise,
so that both count. In each cell every policy runs over both, one after the other, round after
round; every second round turns the order round. ``--list`` lists all 72 cells. Without ``--cells``
four of them run, chosen so that each answers one question: where the processor is the limit, at
1 Gbit/s, with two servers at 5 Gbit/s, and with many small tensors. They take ten minutes on a
quiet machine with two cores.

Printed are, per cell and policy: the median iteration over each, with the least and largest of the
rounds' medians; their ratio within a round, averaged geometrically over rounds, with its 95%
interval; both over the bound; and the processor seconds of all roles per iteration, as a ratio.
Below 1, data links are better. Last comes the verdict, by a rule that was fixed before anything was
measured: data links are the default if they are not slower on average, and in no cell slower by
more than 1% for certain (the lower end of the interval). Iterations of one job resemble each other:
intervals mean something from three rounds on.

Jobs are recorded as a grid's are, in ``--out``: started again, the script runs what is missing;
``--report`` runs nothing. Vans whose jobs end with different parameters are an error.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.table import Table
from script import print_code_notes, progress_of, run_script, scheduler_names
from small_tensors import workload_of

from byteprophet.bench.grid import Cell, Grid
from byteprophet.bench.grid_jobs import Variant
from byteprophet.bench.grid_phases import in_turn
from byteprophet.bench.grid_report import select
from byteprophet.bench.grid_run import namespaces_for, prepare, run_jobs
from byteprophet.bench.grid_store import Record, read_records, turn_of
from byteprophet.bench.spread import Ratio, combine, geometric_mean, of_shared_rounds
from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError
from byteprophet.network import parse_rate, payload_bps
from byteprophet.report.console import table_console
from byteprophet.workload import load

VANS = ("zmq", "sockets")
VARIABLE = "BYTEPROPHET_VAN"
DEFAULT_CELLS = (
    "resnet50-unlimited-2w1s,resnet50-1gbit-2w1s,bert-base-5gbit-2w2s,small-300mbit-2w1s"
)
_WORKLOADS = ("resnet50", "vgg19", "bert-base", "small")
_LINKS = ("unlimited", "10gbit", "5gbit", "2.5gbit", "1gbit", "300mbit")
_ROLES = ((2, 1), (2, 2), (4, 2))  # workers, servers
_COMPUTE_NS = 150_000_000
_PHASE = "van"
_TOLERATED = 1.01  # in a single cell


@dataclass(frozen=True)
class Row:
    """One cell under one policy: records by van, in the order of rounds, and sockets over zmq."""

    cell: str
    policy: str
    records: dict[str, list[Record]]
    ratio: Ratio

    @classmethod
    def of(cls, cell: str, policy: str, records: Sequence[Record]) -> Row | None:
        """None if no round has run over both."""
        found = {
            van: {
                turn_of(record): record
                for record in records
                if (record["cell"], record["variant"]) == (cell, variant(policy, van).label)
            }
            for van in VANS
        }
        shared = sorted(found["zmq"].keys() & found["sockets"].keys())
        by_van = {van: [found[van][turn] for turn in shared] for van in VANS}
        times = {
            van: {turn: record["iteration_ns"] for turn, record in found[van].items()}
            for van in VANS
        }
        ratio = of_shared_rounds(times["sockets"], times["zmq"])
        return None if ratio is None else cls(cell, policy, by_van, ratio)

    def medians_ms(self, van: str) -> list[float]:
        """Of each round."""
        return [median(record["iteration_ns"]) / 1e6 for record in self.records[van]]

    def over_bound(self, van: str) -> float:
        """The median iteration over the bound."""
        return 1e6 * median(self.medians_ms(van)) / float(self.records[van][0]["bound_ns"])

    def processor(self) -> float:
        """Processor seconds per iteration: sockets over zmq."""
        taken = [median(map(_processor_ns, self.records[van])) for van in ("sockets", "zmq")]
        return taken[0] / taken[1]


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print, judge."""
    options = _parse(arguments)
    policies = scheduler_names(options.policies)
    if "stock" in policies:
        raise UserError("--policies: stock has no data links")
    if min(options.rounds, options.iterations) < 1:
        raise UserError("--rounds and --iterations must be at least 1")
    if options.list:
        print("\n".join(cell_names()))
        return
    names = chosen(options.cells)
    grid = Grid("van", tuple(_cell(name, options.out) for name in names), options.iterations)
    if not options.report:
        variants = [variant(policy, van) for policy in policies for van in VANS]
        cells = prepare(grid, options.out)
        jobs = in_turn(_PHASE, cells, [variants] * len(cells), options.rounds)
        run_jobs(grid, cells, jobs, options.out, namespaces_for(grid), progress_of("van"))
    print_rows(list(_rows(names, policies, select(grid, read_records(options.out)))))


def variant(policy: str, van: str) -> Variant:
    """A policy whose gradients travel over ``van``."""
    return Variant(policy, environment={VARIABLE: van})


def cell_names() -> list[str]:
    """Of all cells."""
    return [
        f"{workload}-{link}-{workers}w{servers}s"
        for workload in _WORKLOADS
        for link in _LINKS
        for workers, servers in _ROLES
    ]


def chosen(patterns: str) -> list[str]:
    """Cells that match one of the patterns, each once; UserError for one that matches none."""
    found: dict[str, None] = {}
    for pattern in split(patterns, "--cells"):
        matching = [name for name in cell_names() if fnmatchcase(name, pattern)]
        if not matching:
            raise UserError(f"--cells {pattern!r}: matches no cell; --list lists them")
        found.update(dict.fromkeys(matching))
    return list(found)


def print_rows(rows: Sequence[Row]) -> None:
    """The table and the verdict."""
    if not rows:
        print("nothing has run over both yet")
        return
    table = Table("cell", "policy", "rounds", box=box.SIMPLE)
    for title in ("zmq ms", "sockets ms", "sockets / zmq", "over the bound", "processor"):
        table.add_column(title, justify="right")
    for row in rows:
        low, high = row.ratio.interval
        table.add_row(
            row.cell,
            row.policy,
            str(len(row.records["zmq"])),
            *(_spread(row.medians_ms(van)) for van in VANS),
            f"{row.ratio.value:.3f} ({low:.3f}-{high:.3f})",
            " ".join(f"{row.over_bound(van):.3f}" for van in VANS),
            f"{row.processor():.2f}",
        )
    table_console(160).print(table)
    print(verdict(rows))
    print_code_notes([record for row in rows for van in VANS for record in row.records[van]])


def verdict(rows: Sequence[Row]) -> str:
    """Which should be the default, by the rule above, and why."""
    mean = combine([row.ratio for row in rows], geometric_mean)
    low, high = mean.interval
    slower = [
        f"{row.cell} under {row.policy}" for row in rows if row.ratio.interval[0] > _TOLERATED
    ]
    taken = mean.value <= 1 and not slower
    return (
        f"geometric mean of sockets / zmq {mean.value:.3f} ({low:.3f}-{high:.3f}) over {len(rows)} "
        f"rows; slower by more than {_TOLERATED - 1:.0%} for certain: "
        f"{', '.join(slower) or 'none'}: the default should be {'sockets' if taken else 'zmq'}"
    )


def _rows(
    names: Sequence[str], policies: Sequence[str], records: Sequence[Record]
) -> Iterator[Row]:
    for name in names:
        own = [each for each in records if (each["phase"], each["cell"]) == (_PHASE, name)]
        ended = {(record["code"], record["parameters_sha256"]) for record in own}
        if len(ended) > len({code for code, _ in ended}):
            raise JobFailed(f"{name}: jobs ended with different parameters")
        for policy in policies:
            row = Row.of(name, policy, own)
            if row is not None:
                yield row


def _processor_ns(record: Record) -> float:
    return float(record["job_cpu_fraction"] * median(record["iteration_ns"]))


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


def _cell(name: str, directory: Path) -> Cell:
    workload, link, roles = name.rsplit("-", 2)
    workers, servers = roles.removesuffix("s").split("w")
    path = workload_of(workload, directory)
    rate_bps = payload_bps(parse_rate(link))
    wire_ns = 0 if rate_bps is None else load(path).size_bytes * 8 * 10**9 // rate_bps
    made: dict[str, Any] = {"workers": int(workers), "servers": int(servers), "name": name}
    return Cell(
        str(Path(path).absolute()) if path.endswith(".toml") else path,
        link,
        max(_COMPUTE_NS, wire_ns),
        **made,
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure whether data links should carry gradients by default.",
        epilog="example: python experiments/van.py --cells 'resnet50-*-2w1s' --rounds 4",
    )
    parser.add_argument("--cells", default=DEFAULT_CELLS, help="names with wildcards, by commas")
    parser.add_argument("--list", action="store_true", help="print all cells, run nothing")
    parser.add_argument("--policies", default="fifo,prophet")
    parser.add_argument("--rounds", type=int, default=2, help="jobs of each kind in a cell")
    parser.add_argument("--iterations", type=int, default=8, help="measured ones of each job")
    parser.add_argument("--out", type=Path, default=Path("runs/van"), help="of the records")
    parser.add_argument("--report", action="store_true", help="run nothing, print what there is")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_script(main)
