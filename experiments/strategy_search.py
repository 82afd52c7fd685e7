"""The search for strategies against all builders, hand-made ones, and other searches.

    python experiments/strategy_search.py

A case is a paced model on workers and servers with links of given rates. The ratio r is the time of
an all-reduce on links at full rate over the compute. In each case run, as real jobs:

1. ``byteprophet strategy search`` with ``--trials`` runs;
2. the same number of random routings, as AutoDist draws them, chosen by a ranker that learns from
   trials alone (AutoDist's search without its own cost model);
3. the same number of random routings that load the links no more than the better pure strategy
   ("random + constraints");
4. every builder, once; then, in ``--rounds`` rounds, the three best builders, the best hand-made
   one, and what each of the searches found, the engine without any trial among them.

Printed per case: what each side takes, over the bound of all strategies; how many times as fast as
the best builder, and the best hand-made one, the search's strategy is; whether it is a hit (within
2% of the fastest strategy that ran in the case); the rank correlation (Kendall) of the engine, and
of the engine with what trials taught, with measurements of the random routings, which the search
did not see; and how long the search on the engine took. Then: hit rates of all searches, and
geometric means. ``--slowed`` slows compute and links, so that the cores of this machine are not the
limit.

Writes ``strategy-search.json`` to ``--out``, and goes on where it stopped, in mid-case too. A case
takes about 60 jobs of 11 iterations with the defaults, most of an hour.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from recorded import add_places, label_of
from rows import Row, Rows
from scipy.stats import kendalltau
from script import progress_of, run_script

from byteprophet.errors import UserError
from byteprophet.network import PAYLOAD_SHARE
from byteprophet.strategy.resources import HostResources, Resources
from byteprophet.strategy.search.bases import bases_of_workload
from byteprophet.strategy.search.candidates import BUILDER, Candidate, Predictor, table_of
from byteprophet.strategy.search.choosing import BATCH, next_batch
from byteprophet.strategy.search.kept import Kept
from byteprophet.strategy.search.outcome import Outcome
from byteprophet.strategy.search.run import learned, search
from byteprophet.strategy.search.sampler import sampled_routings
from byteprophet.strategy.search.trials import Paced, Runner, Trial, Trials, paced_runner
from byteprophet.workload import load

CASES = (
    "resnet50/1,1,1,1+1,1/1.5",
    "resnet50/1,1,1,1+1,1/2",
    "vgg19/1,1,1,1+1,1/1.5",
    "bert-base/1,1,1,1+1,1/2",
    "resnet50/1,1,1+1,1/1.5",
    "bert-base/1,1,1,1+1/1.5",
    "resnet50/1,1,1,0.5+/1",
    "bert-base/1,1,1,0.5+/1",
    "resnet50/1,1,0.5,0.5+/2",
    "resnet50/1,1,1,0.5+1/1",
    "bert-base/1,1,0.5,0.5+0.5,0.5/1",
    "resnet50/1,1+1/1",
)
"""MODEL/WORKERS+SERVERS/RATIO: rates of links, as parts of the full one."""

SEARCHED, ENGINE, SAMPLER, RANDOM = "search", "engine alone", "sampler + trials", "random + limits"
_HIT = 1.02
_POOL = 40
"""Random routings among which the ranker without an engine chooses."""
_progress = progress_of("strategy search")


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print, save."""
    options = _parse(arguments)
    cells = [case_of(text) for text in options.cases.split(";")]
    names = ("slowed", "iterations", "trials", "rounds", "budget_s", "seed")
    settings = {name: getattr(options, name) for name in names}
    rows = Rows(options.out / "strategy-search.json", settings)

    def run(cell: Row) -> Row:
        return measure(cell, options)

    found = rows.complete(cells, _label, run)
    print(
        f"{options.trials} trials per search, compute and links slowed {options.slowed} times, "
        f"{options.rounds} round(s)"
    )
    for row in found:
        print(line(row))
    print(summary(found))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare the search for strategies with builders and other searches.",
        epilog="example: python experiments/strategy_search.py --cases resnet50/1,1,1,0.5+/1",
    )
    parser.add_argument(
        "--cases", default=";".join(CASES), help="MODEL/WORKERS+SERVERS/RATIO, separated by ;"
    )
    parser.add_argument("--slowed", type=int, default=2, help="compute and links, so many times")
    parser.add_argument("--iterations", type=int, default=6, help="measured ones of each job")
    parser.add_argument("--trials", type=int, default=8, help="runs of each search")
    parser.add_argument("--rounds", type=int, default=2, help="of the final comparison")
    parser.add_argument("--budget-s", type=float, default=10.0, help="of the search on the engine")
    parser.add_argument("--seed", type=int, default=0)
    add_places(parser)
    return parser.parse_args(arguments)


def case_of(text: str) -> dict[str, Any]:
    """The case that ``text`` names. Raises ``UserError`` if it is none."""
    try:
        model, hosts, ratio = text.rsplit("/", 2)
        workers, servers = (
            [float(rate) for rate in part.split(",") if rate] for part in hosts.split("+")
        )
        number = float(ratio)
    except ValueError:
        form = f"use MODEL/WORKERS+SERVERS/RATIO, as {CASES[0]}"
        raise UserError(f"--cases {text!r}: {form}") from None
    if not workers or min(*workers, *servers, number) <= 0:
        raise UserError(f"--cases {text!r}: rates and the ratio must be above 0")
    return {"model": model, "workers": workers, "servers": servers, "ratio": number}


def resources_of(cell: Row, compute_ns: int) -> Resources:
    """The hosts of a case, whose model computes for ``compute_ns``."""
    workers = len(cell["workers"])
    moved_bits = 8 * load(cell["model"]).size_bytes * 2 * (workers - 1) / workers
    full_bps = math.ceil(moved_bits * 1e9 / PAYLOAD_SHARE / (cell["ratio"] * compute_ns))
    hosts = []
    for role in ("worker", "server"):
        for number, part in enumerate(cell[f"{role}s"]):
            rate_bps = round(full_bps * part)
            hosts.append(
                HostResources(
                    f"{role}-{number}",
                    workers=int(role == "worker"),
                    servers=int(role == "server"),
                    up_bps=rate_bps,
                    down_bps=rate_bps,
                )
            )
    # What messages cost in namespaces of one machine (docs/replay.md).
    return Resources(tuple(hosts), delay_ns=200_000, message_cost_ns=30_000)


@dataclass(frozen=True)
class _Case:
    """What all parts of a case share. ``trials_of`` makes trials in a directory of their own."""

    predictor: Predictor
    outcome: Outcome
    trials_of: Callable[[str], Trials]
    options: argparse.Namespace


def measure(cell: Row, options: argparse.Namespace) -> Row:
    """Run all parts of a case."""
    workload = load(cell["model"])
    compute_ns = options.slowed * (workload.forward_ns + workload.backward_ns)
    given = resources_of(cell, compute_ns)
    workload = workload.scaled(compute_ns)
    directory = options.runs / "strategy-search" / f"{_name(cell)}-{given.digest}"
    bases = bases_of_workload(workload, given)
    paced = Paced(cell["model"], compute_ns, options.iterations)
    runner: Runner = paced_runner(paced, workload, given, directory / "runs")
    outcome = search(
        bases,
        directory,
        of=given.digest,
        trials=options.trials,
        budget_s=options.budget_s,
        seed=options.seed,
        runner=runner,
        say=_progress,
    )

    def trials_of(name: str) -> Trials:
        kept = Kept(directory / name, given.digest, bases)
        return Trials(kept.rounds, given.digest, runner, kept.save, _progress)

    case = _Case(Predictor(bases), outcome, trials_of, options)
    sampled = _sampled(case) if cell["servers"] else []
    limited = _limited(case) if cell["servers"] else []
    return _compared(case, sampled, limited)


def _sampled(case: _Case) -> list[Trial]:
    """AutoDist's sampler: random routings, chosen by a ranker that knows trials only."""
    candidates = _random(case, _POOL, constraints=False)
    blind = [replace(each, engine_ns=1_000_000) for each in candidates]
    trials = case.trials_of("sampler")
    while trials.count < case.options.trials:
        size = min(BATCH, case.options.trials - trials.count)
        ranker = learned(blind, trials.all, trials.baseline_ns)
        batch = blind[:size] if not trials.count else next_batch(blind, ranker, trials.all, size)
        if not batch:
            break
        trials.run(batch)
    by_digest = {each.digest: each for each in candidates}
    return [replace(each, candidate=by_digest[each.candidate.digest]) for each in trials.all]


def _limited(case: _Case) -> list[Trial]:
    """Random routings with constraints, all of which run."""
    candidates = _random(case, case.options.trials, constraints=True)
    trials = case.trials_of("random")
    for first in range(0, len(candidates), BATCH):
        trials.run(candidates[first : first + BATCH])
    return trials.all


def _random(case: _Case, count: int, constraints: bool) -> list[Candidate]:
    predictor = case.predictor
    routings = sampled_routings(
        predictor.job,
        predictor.engine.units,
        count,
        seed=case.options.seed,
        constraints=constraints,
    )
    predictor.engine.many(routings)
    kind = "limited" if constraints else "random"
    return [predictor.of_routing(f"{kind} {n}", each) for n, each in enumerate(routings)]


def _compared(case: _Case, sampled: Sequence[Trial], limited: Sequence[Trial]) -> Row:
    """Every builder once; then the best of all sides in rounds."""
    outcome = case.outcome
    builders = [each for each in outcome.candidates if each.by == BUILDER]
    once = case.trials_of("builders")
    for first in range(0, len(builders), BATCH):
        once.run(builders[first : first + BATCH])
    best = sorted(once.all, key=lambda trial: trial.ratio)
    by_hand = [trial for trial in best if trial.candidate.is_by_hand]
    sides = {SEARCHED: outcome.best, ENGINE: outcome.candidates[0]}
    for name, trials in ((SAMPLER, sampled), (RANDOM, limited)):
        if trials:
            sides[name] = min(trials, key=lambda trial: trial.ratio).candidate
    finalists = {each.digest: each for each in sides.values()}
    for trial in [*best[:3], *by_hand[:1]]:
        finalists.setdefault(trial.candidate.digest, trial.candidate)
    final = case.trials_of("final")
    for _ in range(case.options.rounds):
        final.run(list(finalists.values()))
    ratios = {trial.candidate.digest: trial for trial in final.all}
    return {
        "bound_ns": outcome.bound_ns,
        "baseline_ns": final.baseline_ns,
        "search_s": outcome.search_s,
        "replays": outcome.replays,
        "engine_error": outcome.engine_error,
        "ended": outcome.ended,
        "trials": sum(len(trial.ratios) for trial in outcome.trials),
        "sides": {name: _side(ratios[each.digest]) for name, each in sides.items()},
        "builders": [
            {
                **_side(ratios.get(trial.candidate.digest, trial)),
                "by_hand": trial.candidate.is_by_hand,
                "final": trial.candidate.digest in ratios,
            }
            for trial in best
        ],
        "held_out": _held_out(case, [*sampled, *limited]),
    }


def _side(trial: Trial) -> dict[str, Any]:
    return {
        "strategy": trial.candidate.name,
        "engine_ns": trial.candidate.engine_ns,
        "ratios": list(trial.ratios),
        "times_ns": list(trial.times_ns),
    }


def _held_out(case: _Case, trials: Sequence[Trial]) -> list[dict[str, float]]:
    """Of each random routing that ran: predictions without and with trials, and the measurement."""
    if not trials:
        return []
    outcome = case.outcome
    ranker = learned(outcome.candidates, outcome.trials, outcome.baseline_ns)
    candidates = [trial.candidate for trial in trials]
    engine_ns = np.array([each.engine_ns for each in candidates], np.float64)
    taught = np.exp(ranker.log_ns(table_of(candidates), engine_ns))
    return [
        {"engine_ns": float(engine), "learned_ns": float(with_trials), "ratio": trial.ratio}
        for engine, with_trials, trial in zip(engine_ns, taught, trials, strict=True)
    ]


def gain(row: Row, by_hand: bool) -> float:
    """How many times as fast as the best builder the search's strategy is; 0: none is by hand."""
    others = [
        median(each["ratios"])
        for each in row["builders"]
        if each["final"] and (each["by_hand"] or not by_hand)
    ]
    return min(others) / median(row["sides"][SEARCHED]["ratios"]) if others else 0.0


def is_hit(row: Row, side: str) -> bool:
    """Whether a side's strategy is within 2% of the fastest that ran in the final rounds."""
    finalists = [each for each in row["builders"] if each["final"]] + list(row["sides"].values())
    best = min(median(each["ratios"]) for each in finalists)
    return bool(median(row["sides"][side]["ratios"]) <= _HIT * best)


def correlation(row: Row, which: str) -> float:
    """Kendall's rank correlation of ``which`` prediction with measurements of held-out routings."""
    held_out = row["held_out"]
    found = kendalltau([each[which] for each in held_out], [each["ratio"] for each in held_out])
    return float(found.statistic)


def line(row: Row) -> str:
    """A case for people."""
    sides = [
        f"{name} {median(side['times_ns']) / 1e6:.0f} ms "
        f"({median(side['times_ns']) / row['bound_ns']:.3f}, {side['strategy']})"
        for name, side in row["sides"].items()
    ]
    text = (
        f"{_label(row)}: iteration (x the bound): {', '.join(sides)}; "
        f"{gain(row, by_hand=False):.3f} times as fast as the best builder"
    )
    if gain(row, by_hand=True):
        text += f", {gain(row, by_hand=True):.3f} times as the best hand-made one"
    hits = [name for name in row["sides"] if is_hit(row, name)]
    text += f"; hits: {', '.join(hits) or 'none'}"
    if row["held_out"]:
        text += (
            f"; rank correlation {correlation(row, 'engine_ns'):.2f}, "
            f"{correlation(row, 'learned_ns'):.2f} with trials"
        )
    return f"{text}; searched for {row['search_s']:.1f} s, {row['replays']} routings"


def summary(rows: Sequence[Row]) -> str:
    """Hit rates and geometric means over all cases."""
    parts = []
    for name in (SEARCHED, ENGINE, SAMPLER, RANDOM):
        having = [row for row in rows if name in row["sides"]]
        if having:
            hits = sum(is_hit(row, name) for row in having)
            parts.append(f"{name} {hits} of {len(having)}")
    of_all = geometric_mean([gain(row, by_hand=False) for row in rows])
    by_hand = [gain(row, by_hand=True) for row in rows if gain(row, by_hand=True)]
    text = f"hits: {', '.join(parts)}; times as fast as the best builder {of_all:.3f}"
    return f"{text}, as the best hand-made one {geometric_mean(by_hand):.3f}" if by_hand else text


def _label(row: Row) -> str:
    workers, servers = (",".join(f"{rate:g}" for rate in row[role]) for role in _ROLES)
    return f"{row['model']}, links {workers}+{servers}, r = {row['ratio']:g}"


_ROLES = ("workers", "servers")


def _name(cell: Row) -> str:
    workers, servers = (len(cell[role]) for role in _ROLES)
    return f"{label_of(cell['model']).replace(':', '-')}-{workers}+{servers}-{cell['ratio']:g}"


if __name__ == "__main__":
    run_script(main)
