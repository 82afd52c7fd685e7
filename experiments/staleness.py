"""Delayed averages beside none: what hides the exchange of an embedding.

    python experiments/staleness.py

Ranks on links of one rate train a paced model. In every round run, one after the other, each
runtime with no delays, with averages of the word embedding that are one step old, and with all
averages one step old. The ratio r is the time of an all-reduce over the compute: at r = 1, the link
is as busy as the workers.

Printed per cell: every variant's iteration over the compute, below which no iteration is, and over
its bound; the median of the rounds, and the lowest and highest. Every job's parameters are compared
with those that the stated gradients and delays give. ``--slowed`` slows compute and links, so that
the cores of this machine are not the limit.

Writes ``staleness.json`` and the strategies to ``--out``, and goes on where it stopped. A cell
takes rounds times six jobs of 15 iterations or so: twenty minutes with the defaults.
``--predict`` runs nothing: it prints what replays predict, in half a minute.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from recorded import add_places
from rows import Row, Rows
from script import check_least, link_bps, progress_of, ratios, run_script
from two_sides import slowest_median_ns

from byteprophet.bench import Case, Plan, run_bench
from byteprophet.bench.case import all_reduce_case, job_of, strategy_case, warmup_of
from byteprophet.bench.result import bound_ns
from byteprophet.cli.lists import split
from byteprophet.errors import UserError
from byteprophet.job.staleness import steps_by_name
from byteprophet.job.strategy import OURS
from byteprophet.job.strategy_file import Used, read_strategy_file, write_strategy
from byteprophet.paced.check import expected_parameters, parameters_sha256
from byteprophet.replay.all_reduce import replay_job, with_strategy
from byteprophet.schedulers import DEFAULT
from byteprophet.strategy.builders import build
from byteprophet.strategy.delayed import delayed
from byteprophet.whole_files import make_directory
from byteprophet.workload import load

_progress = progress_of("staleness")
_REPLAYED = 8  # iterations of a replay, of which the second half counts


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print, save."""
    options = _parse(arguments)
    cells = [
        {"model": model, "ratio": ratio}
        for model in split(options.models, "--models")
        for ratio in ratios(options.ratios)
    ]
    if options.predict:
        for cell in cells:
            print("\n".join(predict(cell, options)))
        return
    names = ("ranks", "runtimes", "late", "slowed", "iterations", "rounds")
    rows = Rows(options.out / "staleness.json", {name: getattr(options, name) for name in names})

    def run(cell: Row) -> Row:
        return measure(cell, options)

    found = rows.complete(cells, _label, run)
    print(
        f"{options.ranks} ranks, compute and links slowed {options.slowed} times, "
        f"{options.rounds} round(s)"
    )
    for row in found:
        print("\n".join(lines(row)))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare jobs whose averages are delayed with jobs whose are not.",
        epilog="example: python experiments/staleness.py --ratios 0.5,1 --rounds 1",
    )
    parser.add_argument("--models", default="bert-base")
    parser.add_argument("--ratios", default="1", help="all-reduce / compute")
    parser.add_argument("--runtimes", default="allreduce,dear-planned")
    parser.add_argument("--late", default="*word_embeddings*", help="what is delayed alone")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--slowed", type=int, default=4, help="compute and links, so many times")
    parser.add_argument("--iterations", type=int, default=8, help="measured ones of each job")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--predict", action="store_true", help="run nothing, replay")
    add_places(parser)
    options = parser.parse_args(arguments)
    for runtime in split(options.runtimes, "--runtimes"):
        if runtime not in OURS:
            raise UserError(f"--runtimes {runtime!r}: must be one of {', '.join(OURS)}")
    check_least(options, ranks=2, slowed=1, iterations=1, rounds=1)
    return options


def cases_of(cell: Row, options: argparse.Namespace) -> dict[str, Case]:
    """The variants of a cell by name. Their strategies are files in ``--out``."""
    workload = load(cell["model"])
    compute_ns = options.slowed * (workload.forward_ns + workload.backward_ns)
    rate_bps = link_bps(workload.size_bytes, options.ranks, cell["ratio"], compute_ns)
    folder = options.out / "staleness-strategies"
    make_directory(folder)
    cases = {}
    for runtime in split(options.runtimes, "--runtimes"):
        base = all_reduce_case(
            Case(cell["model"], DEFAULT, rate_bps, workers=options.ranks, compute_ns=compute_ns),
            runtime,
            {},
        )
        job = build(runtime, job_of(base, workload.scaled(compute_ns)))
        for name, wishes in (("none", []), ("some", [f"{options.late}=1"]), ("all", ["*=1"])):
            made = delayed(job, wishes)
            path = folder / f"{cell['model']}-{cell['ratio']:g}-{runtime}-{name}.json"
            write_strategy(path, Used(made.model, made.strategy, 0))
            cases[f"{runtime}, {name} delayed"] = strategy_case(base, path)
    return cases


def predicted_ns(cell: Row, case: Case) -> int:
    """The iteration of a variant by replay: messages are free, and updates take no time."""
    assert case.strategy is not None
    job = job_of(case, load(cell["model"]).scaled(case.compute_ns or 0))
    times = job.times.only_iterations(np.zeros(_REPLAYED, np.int64))
    strategy = read_strategy_file(case.strategy).strategy
    replayed = replay_job(with_strategy(replace(job, times=times), strategy))
    return int(np.mean(replayed.iterations_ns[_REPLAYED // 2 :]))


def predict(cell: Row, options: argparse.Namespace) -> list[str]:
    """What is predicted of a cell, for people."""
    texts = [f"{_label(cell)}: predicted iteration / compute, bound / compute:"]
    for name, case in cases_of(cell, options).items():
        workload = load(cell["model"]).scaled(case.compute_ns or 0)
        least = bound_ns(workload, case) / (case.compute_ns or 1)
        ratio = predicted_ns(cell, case) / (case.compute_ns or 1)
        texts.append(f"  {name:28} {ratio:.3f}, {least:.3f}")
    return texts


def measure(cell: Row, options: argparse.Namespace) -> Row:
    """Run all variants in turn; the medians of the rounds, of the slowest rank's iterations."""
    cases = cases_of(cell, options)
    iterations = options.iterations * options.rounds
    plan = Plan(tuple(cases.values()), iterations, options.rounds, warmup_of(cases.values()))
    results = run_bench(plan, options.runs, True, _progress)
    workload = load(cell["model"])
    hashes = {
        case.staleness: parameters_sha256(
            expected_parameters(
                workload, options.ranks, plan.updates, steps_by_name(case.staleness)
            )
        )
        for case in cases.values()
    }
    return {
        "compute_ns": options.slowed * (workload.forward_ns + workload.backward_ns),
        "variants": [
            {
                "name": name,
                "late": len(case.staleness),
                "bound_ns": result["bound_ns"],
                "is_exact": result["parameters_sha256"] == hashes[case.staleness],
                "rounds_ns": [
                    slowest_median_ns(Path(run), options.ranks) for run in result["runs"]
                ],
            }
            for (name, case), result in zip(cases.items(), results, strict=True)
        ],
    }


def lines(row: Row) -> list[str]:
    """A cell for people."""
    compute_ns = row["compute_ns"]
    texts = [f"{_label(row)}: compute {compute_ns / 1e6:.0f} ms; iteration / compute, / bound:"]
    for each in row["variants"]:
        ratios = [time_ns / compute_ns for time_ns in each["rounds_ns"]]
        of_bound = median(each["rounds_ns"]) / each["bound_ns"]
        texts.append(
            f"  {each['name']:28} {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), "
            f"{of_bound:.3f}{'' if each['is_exact'] else '; PARAMETERS ARE WRONG'}"
        )
    return texts


def _label(row: Row) -> str:
    return f"{row['model']}, r = {row['ratio']:g}"


if __name__ == "__main__":
    run_script(main)
