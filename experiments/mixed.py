"""Servers and a mesh in one job, against the best of each alone.

    python experiments/mixed.py

Workers and servers, all on links of one rate, train a paced model. In every round run, one after
the other, the uniform strategies: ``prophet`` on the servers, with BytePS' placement of gradients
and with one that loads servers evenly, DistributedDataParallel, ``allreduce`` and ``dear-planned``;
and mixed ones, in which a fraction of all bytes goes to servers and the rest over a mesh of the
workers. The fractions are the builders' own (``byteprophet strategy make mixed``, and the same with
a paced mesh, ``mixed-paced``), and those of
``--fractions``. The ratio r is the time of an all-reduce over the compute.

Printed per cell: every strategy's iteration, also over the bound of what it moves; and how many
times as fast as the best uniform strategy the best mixed one is: the median of the rounds, and the
lowest and highest. Where links alone are the limit, 1.25 is the most that four workers and two
servers can gain, and 1.20 if both transports share a link by their connections. ``--slowed``
slows compute and links, so that the cores of this machine are not the limit.

Beside them, what replays say: one uniform strategy (``--recorded``) runs once more and is recorded,
and from this record alone each mixed strategy is predicted, as by ``byteprophet strategy explain``.
The last line has the mean and the worst error of all predictions.

Writes ``mixed.json`` and the strategies to ``--out``, and goes on where it stopped. A cell takes
rounds times nine jobs of 25 iterations or so, and one more: more than an hour with the defaults.
``--strategies prophet,dear-planned,"mixed paced"`` runs only these.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from recorded import add_places
from rows import Row, Rows
from script import check_least, link_bps, numbers, progress_of, ratios, run_script
from two_sides import gains_of, slowest_median_ns

from byteprophet import schedulers
from byteprophet.bench import Case, Plan, run_bench
from byteprophet.bench.case import all_reduce_case, job_of, strategy_case, warmup_of
from byteprophet.bench.execute import check_case, run_case
from byteprophet.cli.lists import split
from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.strategy_file import Used, read_strategy_file, write_strategy
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.strategy.builders import build
from byteprophet.strategy.explanation import Explanation, explain
from byteprophet.strategy.mixed import mixed
from byteprophet.strategy.routed import under_routes
from byteprophet.validate.validation import Errors
from byteprophet.whole_files import make_directory
from byteprophet.workload import load

ALONE = ("ddp", "allreduce", "dear-planned")
BALANCED, MIXED, PACED = "partitioned-ps", "mixed", "mixed paced"
MEAN, WORST = 0.05, 0.10
"""What errors of predictions should be at most."""
_RECORDED = 10  # measured iterations of the job that is recorded
_progress = progress_of("mixed")


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print, save."""
    options = _parse(arguments)
    check_least(options, workers=2, servers=1, slowed=1, iterations=1, rounds=1)
    cells = [
        {"model": model, "ratio": ratio}
        for model in split(options.models, "--models")
        for ratio in ratios(options.ratios)
    ]
    fractions: list[float] = []
    if options.fractions:
        fractions = numbers(options.fractions, "--fractions", float, 0.01, 0.99)
    names = ("workers", "servers", "slowed", "iterations", "rounds", "recorded", "strategies")
    settings = {**{name: getattr(options, name) for name in names}, "fractions": fractions}
    rows = Rows(options.out / "mixed.json", settings)

    def run(cell: Row) -> Row:
        return measure(cell, options, fractions)

    found = rows.complete(cells, _label, run)
    print(
        f"{options.workers} workers, {options.servers} server(s), compute and links slowed "
        f"{options.slowed} times, {options.rounds} round(s)"
    )
    for row in found:
        print(line(row))
    print(errors_line(found))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare servers and a mesh in one job with each of them alone.",
        epilog="example: python experiments/mixed.py --models resnet50 --ratios 1.5",
    )
    parser.add_argument("--models", default="resnet50")
    parser.add_argument("--ratios", default="1.5,2", help="all-reduce / compute")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--fractions", default="0.4,0.6", help="of all bytes, to servers")
    parser.add_argument("--strategies", default="", help="only these; default: all")
    parser.add_argument("--slowed", type=int, default=4, help="compute and links, so many times")
    parser.add_argument("--iterations", type=int, default=6, help="measured ones of each job")
    parser.add_argument("--rounds", type=int, default=3)
    uniform = (schedulers.DEFAULT, *ALONE[1:])
    parser.add_argument("--recorded", choices=uniform, default=uniform[0], help="for predictions")
    add_places(parser)
    return parser.parse_args(arguments)


def cases_of(
    cell: Row, workers: int, servers: int, slowed: int, fractions: Sequence[float], folder: Path
) -> dict[str, Case]:
    """The strategies of a cell by name, the mixed ones last. Their files are in ``folder``."""
    workload = load(cell["model"])
    compute_ns = slowed * (workload.forward_ns + workload.backward_ns)
    rate_bps = link_bps(workload.size_bytes, workers, cell["ratio"], compute_ns)
    served = Case(
        cell["model"],
        schedulers.DEFAULT,
        rate_bps,
        workers=workers,
        servers=servers,
        compute_ns=compute_ns,
        server_bandwidth_bps=dict.fromkeys(range(servers), rate_bps),
    )
    job = _complete(job_of(served, workload.scaled(compute_ns)))
    builders: dict[str, Callable[[Job], Job]] = {
        BALANCED: partial(build, BALANCED),
        MIXED: mixed,
        PACED: partial(mixed, paced=True),
    }
    builders |= {f"{MIXED} {each:g}": partial(mixed, fraction=each) for each in fractions}
    make_directory(folder)
    files = {}
    for name, builder in builders.items():
        made = builder(job)
        files[name] = folder / f"{cell['model']}-{cell['ratio']:g}-{name.replace(' ', '-')}.json"
        write_strategy(files[name], Used(made.model, made.strategy, 0, made.policy, servers))
    return {
        served.scheduler: served,
        BALANCED: strategy_case(served, files.pop(BALANCED)),
        **{name: all_reduce_case(served, name, {}) for name in ALONE},
        **{name: strategy_case(served, path) for name, path in files.items()},
    }


def _complete(job: Job) -> Job:
    """``job`` with all settings of its policy, as strategies have them."""
    policy = job.push_policy
    settings, partition_bytes = schedulers.resolve(policy.name, policy.settings)
    settings = {**settings, schedulers.PARTITION: partition_bytes}
    strategy = replace(job.strategy, partition_bytes=partition_bytes)
    return replace(job, strategy=strategy, policy=replace(policy, settings=settings))


def measure(cell: Row, options: argparse.Namespace, fractions: Sequence[float]) -> Row:
    """Run all strategies in turn; the medians of the rounds, of the slowest worker's iterations."""
    folder = options.out / "mixed-strategies"
    cases = cases_of(cell, options.workers, options.servers, options.slowed, fractions, folder)
    wanted = split(options.strategies, "--strategies") if options.strategies else list(cases)
    for name in wanted:
        if name not in cases:
            raise UserError(f"--strategies: there is no {name!r}; have {', '.join(cases)}")
    recorded = cases[options.recorded]
    cases = {name: case for name, case in cases.items() if name in wanted}
    if len({name.startswith(MIXED) for name in cases}) < 2:
        raise UserError(f"--strategies {options.strategies}: needs a uniform and a mixed one")
    predicted = predictions(recorded, cases, options)
    iterations = options.iterations * options.rounds
    plan = Plan(tuple(cases.values()), iterations, options.rounds, warmup_of(cases.values()))
    results = run_bench(plan, options.runs, True, _progress)
    return {
        "workers": options.workers,
        "equal_results": len({result["parameters_sha256"] for result in results}) == 1,
        "strategies": [
            {
                "name": name,
                "mixed": name.startswith(MIXED),
                "bound_ns": result["bound_ns"],
                **predicted.get(name, {}),
                "rounds_ns": [
                    slowest_median_ns(Path(run), options.workers) for run in result["runs"]
                ],
            }
            for name, result in zip(cases, results, strict=True)
        ],
    }


def predictions(
    case: Case, cases: Mapping[str, Case], options: argparse.Namespace
) -> dict[str, Row]:
    """What the record of ``case``, a uniform strategy, says of the mixed ones, by their names."""
    plan = Plan((case,), _RECORDED, 1, warmup_of([case]), record=True, idle_s=0.0)
    workload = check_case(case, plan, options.runs, namespaces=True)
    run = Run(run_case(case, plan, workload, options.runs, namespaces=True).directory)
    measured = measure_run(run)
    found: dict[str, Row] = {}
    for name, each in cases.items():
        if name.startswith(MIXED) and each.strategy is not None:
            used = read_strategy_file(each.strategy)
            job = under_routes(run, measured.job, used, str(each.strategy))
            found[name] = _as_row(explain(measured, job))
    return found


def _as_row(found: Explanation) -> Row:
    interval_ns = list(found.predicted.interval_ns)
    return {"predicted_ns": found.predicted.iteration_ns, "interval_ns": interval_ns}


def gains(row: Row) -> list[float]:
    """Per round: the time of the best uniform strategy over that of the best mixed one."""
    sides: Mapping[bool, list[Any]] = {True: [], False: []}
    for strategy in row["strategies"]:
        sides[strategy["mixed"]].append(strategy)
    return gains_of(sides[False], sides[True])


def line(row: Row) -> str:
    """A cell for people."""
    ratios = [
        f"{each['name']} {median(each['rounds_ns']) / 1e6:.0f} ms "
        f"({median(each['rounds_ns']) / each['bound_ns']:.3f}{_prediction(each)})"
        for each in row["strategies"]
    ]
    of_rounds = gains(row)
    text = (
        f"{_label(row)}: iteration (x its bound; predicted): {', '.join(ratios)}; mixed "
        f"{median(of_rounds):.3f} times as fast ({min(of_rounds):.3f} to {max(of_rounds):.3f})"
    )
    if row["equal_results"]:
        return text
    workers = row["workers"]
    if workers & (workers - 1):  # servers divide, and the mesh multiplies by 1 / workers
        return f"{text}; parameters differ, as transports round averages of {workers} differently"
    return f"{text}; PARAMETERS DIFFER"


def _prediction(strategy: Row) -> str:
    if "predicted_ns" not in strategy:
        return ""
    return f"; predicted {strategy['predicted_ns'] / 1e6:.0f} ms, {_error(strategy):+.1%}"


def _error(strategy: Row) -> float:
    return float(strategy["predicted_ns"] / median(strategy["rounds_ns"]) - 1)


def errors_line(rows: Sequence[Row]) -> str:
    """How wrong the predictions of all rows are, for people."""
    predicted = [each for row in rows for each in row["strategies"] if "predicted_ns" in each]
    errors = Errors.of([_error(each) for each in predicted])
    held = "holds" if errors.mean <= MEAN and errors.worst <= WORST else "does not hold"
    inside = sum(
        each["interval_ns"][0] <= median(each["rounds_ns"]) <= each["interval_ns"][1]
        for each in predicted
    )
    return (
        f"predictions of {len(predicted)} mixed jobs from a uniform job's record: error mean "
        f"{errors.mean:.1%}, worst {errors.worst:.1%} "
        f"(at most {MEAN:.0%} and {WORST:.0%}: {held}); "
        f"{inside} within their intervals"
    )


def _label(row: Row) -> str:
    return f"{row['model']}, r = {row['ratio']:g}"


if __name__ == "__main__":
    run_script(main)
