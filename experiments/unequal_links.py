"""Owners' weights on unequal links, against the best of what has none.

    python experiments/unequal_links.py

Four workers, one or two of them on links at half rate, train a paced model. In every round run, one
after the other, DistributedDataParallel, ``allreduce``, ``dear`` and ``dear-planned`` with equal
owners, and ``allreduce`` and ``dear-planned`` with owners whose links' loads are level (``--owners
auto``). The ratio r is the time of an all-reduce on four links at full rate over the compute.

Printed per cell: every variant's iteration over the bound, which holds for any owners and any
algorithm; and how many times as fast as the best one with equal owners the best one with weights
is: the median of the rounds, and the lowest and highest. Where links alone are the limit, 1.5 is
the most that weights can gain here. ``--slowed`` slows compute and links, so that the cores of this
machine are not the limit.

Writes ``unequal-links.json`` to ``--out``, and goes on where it stopped. A cell takes rounds times
six jobs of 25 iterations or so: 20 minutes with the defaults.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from recorded import add_places
from rows import Row, Rows
from script import check_least, link_bps, numbers, progress_of, ratios, run_script
from two_sides import gains_of, slowest_median_ns

from byteprophet.allreduce.levelled import levelled
from byteprophet.bench import Case, Plan, run_bench
from byteprophet.bench.case import warmup_of
from byteprophet.cli.lists import split
from byteprophet.workload import load

WORKERS = 4
UNIFORM = ("ddp", "allreduce", "dear", "dear-planned")
WEIGHTED = ("allreduce", "dear-planned")
_progress = progress_of("unequal links")


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print, save."""
    options = _parse(arguments)
    check_least(options, slowed=1, iterations=1, rounds=1)
    cells = [
        {"model": model, "slow": slow, "ratio": ratio}
        for model in split(options.models, "--models")
        for slow in numbers(options.slow, "--slow", int, 1, WORKERS - 1)
        for ratio in ratios(options.ratios)
    ]
    settings = {name: getattr(options, name) for name in ("slowed", "iterations", "rounds")}
    rows = Rows(options.out / "unequal-links.json", settings)

    def run(cell: Row) -> Row:
        return measure(cell, options)

    found = rows.complete(cells, _label, run)
    print(f"compute and links slowed {options.slowed} times, {options.rounds} round(s)")
    for row in found:
        print(line(row))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare owners' weights with equal owners where links differ.",
        epilog="example: python experiments/unequal_links.py --models resnet50 --ratios 1",
    )
    parser.add_argument("--models", default="resnet50,bert-base")
    parser.add_argument("--slow", default="1,2", help="how many of the four links have half rate")
    parser.add_argument(
        "--ratios", default="1,2", help="all-reduce on links at full rate / compute"
    )
    parser.add_argument("--slowed", type=int, default=4, help="compute and links, so many times")
    parser.add_argument("--iterations", type=int, default=6, help="measured ones of each job")
    parser.add_argument("--rounds", type=int, default=3)
    add_places(parser)
    return parser.parse_args(arguments)


def cases_of(cell: Row, slowed: int) -> list[Case]:
    """The variants of a cell; those with equal owners first."""
    workload = load(cell["model"])
    compute_ns = slowed * (workload.forward_ns + workload.backward_ns)
    fast_bps = link_bps(workload.size_bytes, WORKERS, cell["ratio"], compute_ns)
    slow = {WORKERS - 1 - number: fast_bps // 2 for number in range(cell["slow"])}
    made = []
    for runtime in UNIFORM:
        case = Case(
            cell["model"],
            "prophet",
            fast_bps,
            workers=WORKERS,
            servers=0,
            compute_ns=compute_ns,
            worker_bandwidth_bps=slow,
            runtime=runtime,
        )
        made.append(case)
    owners = levelled([rate or 0 for rate in made[0].rates_bps])
    return made + [replace(made[UNIFORM.index(each)], owners=owners) for each in WEIGHTED]


def measure(cell: Row, options: argparse.Namespace) -> Row:
    """Run all variants in turn; the medians of the rounds, of the slowest worker's iterations."""
    cases = cases_of(cell, options.slowed)
    iterations = options.iterations * options.rounds
    plan = Plan(tuple(cases), iterations, options.rounds, warmup_of(cases))
    results = run_bench(plan, options.runs, True, _progress)
    variants = [
        {
            "runtime": result["runtime"],
            "owners": result["owners"],
            "rounds_ns": [slowest_median_ns(Path(run), WORKERS) for run in result["runs"]],
        }
        for result in results
    ]
    return {
        "bound_ns": results[0]["bound_ns"],
        "equal_results": len({result["parameters_sha256"] for result in results}) == 1,
        "variants": variants,
    }


def gains(row: Row) -> list[float]:
    """Per round: the best variant's time with equal owners over the best one's with weights."""
    sides: Mapping[bool, list[Any]] = {True: [], False: []}
    for variant in row["variants"]:
        sides[variant["owners"] is not None].append(variant)
    return gains_of(sides[False], sides[True])


def line(row: Row) -> str:
    """A cell for people."""
    ratios = [
        f"{variant['runtime']}{' owners' if variant['owners'] else ''} "
        f"{median(variant['rounds_ns']) / row['bound_ns']:.3f}"
        for variant in row["variants"]
    ]
    of_rounds = gains(row)
    text = (
        f"{_label(row)}: bound {row['bound_ns'] / 1e6:.0f} ms; x bound: {', '.join(ratios)}; "
        f"weights {median(of_rounds):.3f} times as fast "
        f"({min(of_rounds):.3f} to {max(of_rounds):.3f})"
    )
    return text if row["equal_results"] else f"{text}; PARAMETERS DIFFER"


def _label(row: Row) -> str:
    return f"{row['model']}, {row['slow']} of {WORKERS} links at half rate, r = {row['ratio']:g}"


if __name__ == "__main__":
    run_script(main)
