"""The search for strategies against all builders, hand-made ones, and other searches.

    python experiments/strategy_search.py

A case is a paced model on workers and servers with links of given rates. The ratio r is the time of
an all-reduce on links at full rate over the compute. Models are scaled to ``--size`` bytes and
``--compute`` ms, so that iterations are short and two cores do not limit them; what part of a model
each tensor is stays. Six cases are of known models; the models, links and ratios of six others are
drawn from ``--seed``. Seeds from 10,000 on are for tuning the search and are never among those
reported by default.

In each case run, as real jobs, in which strategies take turns where they can:

1. ``byteprophet strategy search`` with ``--trials`` runs;
2. every builder;
3. ``--drawn`` random routings, as AutoDist draws them: among them, a ranker that learns from trials
   alone has ``--trials`` runs, but at most ``--drawn`` (AutoDist's search without a cost model);
4. as many random routings that load the links no more than the better pure strategy
   ("random + limits"), of which the best counts;
5. in ``--rounds`` rounds of longer jobs, the three best builders, the best hand-made one, and what
   each of the searches found, the engine without any trial among them.

A strategy is measured once for all of 1 to 4, and again only where the search confirms its best.

Printed: the cases, and every goal beside what was found. The *ideal* of a case is the bound of the
best hand-made builder over the bound of all strategies. A trial *hits* if it is faster than the
best builder in the same kind of measurement; builders that the search tries are not counted. Rank
correlations (Spearman, and Kendall) are of the engine, and of the engine with what trials taught,
with the random routings, which the search did not see.

Writes ``strategy-search.json`` to ``--out``, and goes on where it stopped. It goes on in mid-case,
too, with the same code, machine and ``--iterations``.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from random_routings import busiest_ns, sampled_routings
from recorded import add_places
from rows import Row, Rows
from scipy.stats import kendalltau, spearmanr
from script import check_least, link_bps, progress_of, run_script

from byteprophet.bench import describe_machine
from byteprophet.bench.grid_jobs import code_version
from byteprophet.bound import bound_ns
from byteprophet.digests import digest_of
from byteprophet.errors import UserError
from byteprophet.input_files import read_json
from byteprophet.job import Job
from byteprophet.job.owners import Owners
from byteprophet.job.strategy import OURS
from byteprophet.job.strategy_file import read_strategy_file
from byteprophet.job.times import Int64Array
from byteprophet.network.namespaces import PAYLOAD_BURST_BYTES
from byteprophet.strategy.resources import HostResources, Resources
from byteprophet.strategy.search.bases import bases_of_workload
from byteprophet.strategy.search.candidates import (
    BUILDER,
    ROUTING,
    Candidate,
    Predictor,
    distinct,
    table_of,
)
from byteprophet.strategy.search.choosing import BATCH, next_batch
from byteprophet.strategy.search.engine import Routing
from byteprophet.strategy.search.kept import Kept
from byteprophet.strategy.search.outcome import Outcome
from byteprophet.strategy.search.run import learned, search
from byteprophet.strategy.search.trials import Paced, Runner, Trial, Trials, paced_runner
from byteprophet.whole_files import make_directory, write_whole
from byteprophet.workload import Workload, load, to_toml
from byteprophet.workload.model import FLOAT32_BYTES

KNOWN = (
    "resnet50/1,1,1,1+1,1/1.5",
    "vgg19/1,1,1,1+1,1/2",
    "bert-base/1,1,1,1+1,1/2",
    "resnet50/1,1,1+1,1/1.5",
    "bert-base/1,1,1,0.5+/1",
    "vgg19/1,1,1,0.5+1/1.5",
)
"""MODEL/WORKERS+SERVERS/RATIO: rates of links, as parts of the full one."""
_LINKS = ("1,1,1,1+1,1", "1,1,1+1,1", "1,1,1,1+1", "1,1,1,0.5+", "1,1,0.5,0.5+", "1,1,1,0.5+1")
_RATIOS = (1.0, 1.5, 2.0)
_MODELS = 3
GENERATED = 6

SEARCHED, ENGINE, SAMPLER, RANDOM = "search", "engine alone", "sampler + trials", "random + limits"
_HAND_GAIN, _IDEAL, _HIT_RATE, _CORRELATION = 1.2, 1.25, 0.8, 0.9
_WARMUP = 6  # iterations: workers agree on an order in five, and the next is the first in that one
_NOISE = 0.01
"""Two runs of one job differ by about as much."""
_progress = progress_of("strategy search")


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print, save."""
    options = _parse(arguments)
    check_least(options, size_mb=0.01, compute_ms=0.01, iterations=1, budget_s=0.01)
    check_least(options, trials=0, drawn=0, rounds=1)
    texts = options.cases.split(";") if options.cases else [*KNOWN, *generated(options.seed)]
    cells = [case_of(text) for text in texts]
    names = (
        "size_mb", "compute_ms", "iterations", "trials", "drawn", "rounds", "budget_s", "seed"
    )  # fmt: skip
    settings = {name: getattr(options, name) for name in names}
    rows = Rows(options.out / "strategy-search.json", settings)

    def run(cell: Row) -> Row:
        return measure(cell, options)

    found = rows.complete(cells, _label, run)
    for row in found:
        print(line(row))
    print(goals(found))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare the search for strategies with builders and other searches.",
        epilog="example: python experiments/strategy_search.py --cases resnet50/1,1,1,0.5+/1",
    )
    parser.add_argument("--cases", help="MODEL/WORKERS+SERVERS/RATIO, separated by ;")
    parser.add_argument("--size-mb", type=float, default=24.0, help="of each model's gradients")
    parser.add_argument("--compute-ms", type=float, default=320.0, help="of an iteration")
    parser.add_argument("--iterations", type=int, default=3, help="measured ones of each trial")
    parser.add_argument("--trials", type=int, default=30, help="runs of the search")
    parser.add_argument("--drawn", type=int, default=16, help="random routings of each kind")
    parser.add_argument("--rounds", type=int, default=2, help="of the final comparison")
    parser.add_argument("--budget-s", type=float, default=5.0, help="of the search on the engine")
    parser.add_argument("--seed", type=int, default=1, help="of generated cases and all lots")
    add_places(parser)
    return parser.parse_args(arguments)


def generated(seed: int) -> list[str]:
    """Cases of ``_MODELS`` drawn models; links of all kinds come up once each."""
    lot = random.Random(seed)
    models = [f"random:{lot.randrange(1 << 30)}" for _ in range(_MODELS)]
    links = lot.sample(_LINKS, GENERATED)
    return [
        f"{models[number % _MODELS]}/{each}/{lot.choice(_RATIOS):g}"
        for number, each in enumerate(links)
    ]


def case_of(text: str) -> dict[str, Any]:
    """The case that ``text`` names. Raises ``UserError`` if it is none."""
    try:
        model, hosts, ratio = text.rsplit("/", 2)
        workers, servers = (
            [float(rate) for rate in part.split(",") if rate] for part in hosts.split("+")
        )
        number = float(ratio)
    except ValueError:
        form = f"use MODEL/WORKERS+SERVERS/RATIO, as {KNOWN[0]}"
        raise UserError(f"--cases {text!r}: {form}") from None
    if not workers or min(*workers, *servers, number) <= 0:
        raise UserError(f"--cases {text!r}: rates and the ratio must be above 0")
    return {"model": model, "workers": workers, "servers": servers, "ratio": number}


def resources_of(cell: Row, size_bytes: int, compute_ns: int) -> Resources:
    """The hosts of a case, whose model has ``size_bytes`` and computes for ``compute_ns``."""
    full_bps = link_bps(size_bytes, len(cell["workers"]), cell["ratio"], compute_ns)
    hosts = []
    for role in _ROLES:
        for number, part in enumerate(cell[role]):
            rate_bps = round(full_bps * part)
            hosts.append(
                HostResources(
                    f"{role[:-1]}-{number}",
                    workers=int(role == "workers"),
                    servers=int(role == "servers"),
                    up_bps=rate_bps,
                    down_bps=rate_bps,
                    burst_bytes=PAYLOAD_BURST_BYTES,
                )
            )
    # What messages cost in namespaces of one machine (docs/replay.md).
    return Resources(tuple(hosts), delay_ns=200_000, message_cost_ns=30_000)


def resized(workload: Workload, size_bytes: int) -> Workload:
    """``workload`` with about ``size_bytes``, of which each tensor keeps its part."""
    factor = size_bytes / workload.size_bytes / FLOAT32_BYTES
    tensors = (
        replace(each, size_bytes=FLOAT32_BYTES * max(1, round(each.size_bytes * factor)))
        for each in workload.tensors
    )
    return replace(workload, tensors=tuple(tensors))


class Shared:
    """What strategies took, by their digests: the n-th measurement is the same for all who ask.

    The baseline runs once, so what the machine does between two rounds is not seen. ``path``: a
    file, so that nothing runs twice.
    """

    def __init__(self, runner: Runner, path: Path) -> None:
        self._runner, self._path = runner, path
        self._times: dict[str, list[list[int]]] = read_json(path) if path.exists() else {}

    def asked(self) -> Runner:
        """A runner that begins with everyone's first measurement."""
        times: dict[str, int] = {}

        def run(files: Mapping[str, Path | None]) -> Iterator[tuple[str, Int64Array]]:
            places = {}
            for label, path in files.items():
                key = "baseline" if path is None else read_strategy_file(path).digest
                places[label] = (key, 0 if path is None else times.get(key, 0))
                times[key] = times.get(key, 0) + 1
            missing = {
                label: path
                for label, path in files.items()
                if len(self._times.get(places[label][0], [])) <= places[label][1]
            }
            for label, times_ns in self._runner(missing):
                self._keep(places[label][0], times_ns)
            for label, (key, number) in places.items():
                yield label, np.array(self._times[key][number], np.int64)

        return run

    def _keep(self, key: str, times_ns: Int64Array) -> None:
        self._times.setdefault(key, []).append([int(each) for each in times_ns])
        write_whole(self._path, json.dumps(self._times) + "\n")


@dataclass(frozen=True)
class _Case:
    """What all parts of a case share. ``trials_of`` makes trials in a directory of their own."""

    predictor: Predictor
    outcome: Outcome
    trials_of: Callable[[str, Runner], Trials]
    shared: Shared
    longer: Runner
    options: argparse.Namespace


def place_of(cell: Row, workload: Workload, given: Resources, options: argparse.Namespace) -> Path:
    """The directory of a case, whose files are those of what would be measured now."""
    machine = json.dumps(describe_machine(), sort_keys=True)
    measured = digest_of(
        given.digest, to_toml(workload), str(options.iterations), code_version(), machine
    )
    return Path(options.runs / "strategy-search" / f"{_name(cell)}-{measured}").absolute()


def measure(cell: Row, options: argparse.Namespace) -> Row:
    """Run all parts of a case."""
    compute_ns = round(1e6 * options.compute_ms)
    workload = resized(load(cell["model"]), round(1e6 * options.size_mb)).scaled(compute_ns)
    given = resources_of(cell, workload.size_bytes, compute_ns)
    directory = place_of(cell, workload, given, options)
    make_directory(directory)
    path = directory / "workload.toml"
    write_whole(path, to_toml(workload))
    bases = bases_of_workload(workload, given)

    def runner(iterations: int, warmup: int) -> Runner:
        paced = Paced(str(path), None, iterations, warmup)
        return paced_runner(paced, workload, given, directory / "runs")

    shared = Shared(runner(options.iterations, _WARMUP), directory / "measured.json")

    def trials_of(name: str, own: Runner) -> Trials:
        kept = Kept(directory / name, given.digest, bases)
        return Trials(kept.rounds, given.digest, own, kept.save, _progress)

    # First all builders, so that they share jobs: the search then finds them measured.
    builders = distinct(list(Predictor(bases).of_builders(_progress)))
    trials_of("builders", shared.asked()).run(builders)
    outcome = search(
        bases,
        directory / f"search-{options.seed}-{options.budget_s:g}",
        of=given.digest,
        trials=options.trials,
        budget_s=options.budget_s,
        seed=options.seed,
        runner=shared.asked(),
        say=_progress,
    )
    longer = runner(2 * options.iterations, _WARMUP)
    case = _Case(Predictor(bases), outcome, trials_of, shared, longer, options)
    sampled = _sampled(case) if cell["servers"] else []
    limited = _limited(case) if cell["servers"] else []
    return _compared(case, sampled, limited)


def _sampled(case: _Case) -> list[Trial]:
    """AutoDist's sampler: random routings, chosen by a ranker that knows trials only."""
    candidates = _random(case, constraints=False)
    blind = [replace(each, engine_ns=1_000_000) for each in candidates]
    case.trials_of("drawn", case.shared.asked()).run(candidates)  # together, in few jobs
    trials = case.trials_of("sampler", case.shared.asked())
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
    trials = case.trials_of("random", case.shared.asked())
    trials.run(_random(case, constraints=True))
    return trials.all


def _random(case: _Case, constraints: bool) -> list[Candidate]:
    predictor = case.predictor
    routings = sampled_routings(
        predictor.job,
        predictor.engine.units,
        case.options.drawn,
        seed=case.options.seed,
        constraints=constraints,
    )
    kind = "limited" if constraints else "random"
    return [predictor.of_routing(f"{kind} {n}", each) for n, each in enumerate(routings)]


def _compared(case: _Case, sampled: Sequence[Trial], limited: Sequence[Trial]) -> Row:
    """Every builder once; then the best of all sides in rounds."""
    outcome = case.outcome
    builders = [each for each in outcome.candidates if each.by == BUILDER]
    once = case.trials_of("builders", case.shared.asked())
    once.run(builders)
    best = sorted(once.all, key=lambda trial: trial.iteration_ns)
    by_hand = [trial for trial in best if trial.candidate.is_by_hand]
    sides = {SEARCHED: outcome.best, ENGINE: outcome.candidates[0]}
    for name, trials in ((SAMPLER, sampled), (RANDOM, limited)):
        if trials:
            sides[name] = min(trials, key=lambda trial: trial.iteration_ns).candidate
    finalists = {each.digest: each for each in sides.values()}
    for trial in [*best[:3], *by_hand[:1]]:
        finalists.setdefault(trial.candidate.digest, trial.candidate)
    final = case.trials_of("final", case.longer)
    for _ in range(case.options.rounds):
        final.run(list(finalists.values()))
    times = {trial.candidate.digest: trial for trial in final.all}
    hand_ns = min((_bound_ns(case, each.job) for each in builders if each.is_by_hand), default=0)
    return {
        "bound_ns": outcome.bound_ns,
        "hand_bound_ns": hand_ns,
        "search_s": outcome.search_s,
        "replays": outcome.replays,
        "engine_error": outcome.engine_error,
        "ended": outcome.ended,
        "routings_ns": [
            trial.times_ns[0] for trial in outcome.trials if trial.candidate.by == ROUTING
        ],
        "runs": sum(len(trial.times_ns) for trial in outcome.trials),
        "sides": {name: _side(times[each.digest]) for name, each in sides.items()},
        "builders": [
            {
                **_side(times.get(trial.candidate.digest, trial)),
                "once_ns": trial.iteration_ns,
                "by_hand": trial.candidate.is_by_hand,
                "final": trial.candidate.digest in times,
            }
            for trial in best
        ],
        "held_out": _held_out(case, [*sampled, *limited]),
    }


def _bound_ns(case: _Case, job: Job) -> float:
    """The bound of a builder's job. On a mesh, that of the package holds for any owners."""
    least_ns = float(bound_ns(job))
    if job.strategy.runtime not in OURS:
        return least_ns
    none = np.zeros(len(case.predictor.engine.units), np.bool_)
    routing = Routing(none, Owners.of(job.strategy.owners, job.workers))
    return max(least_ns, busiest_ns(job, case.predictor.engine.units, routing))


def _side(trial: Trial) -> dict[str, Any]:
    return {
        "strategy": trial.candidate.name,
        "engine_ns": trial.candidate.engine_ns,
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
        {"engine_ns": float(engine), "learned_ns": float(with_trials), "ns": trial.iteration_ns}
        for engine, with_trials, trial in zip(engine_ns, taught, trials, strict=True)
    ]


def gain(row: Row, side: str = SEARCHED, by_hand: bool = False) -> float:
    """How many times as fast as the best builder a side's strategy is; 0: none is by hand."""
    others = [
        median(each["times_ns"])
        for each in row["builders"]
        if each["final"] and (each["by_hand"] or not by_hand)
    ]
    return float(min(others) / median(row["sides"][side]["times_ns"])) if others else 0.0


def hits(row: Row, by_hand: bool = False) -> int:
    """How many of the routings that the search tried were faster than the best builder."""
    best_ns = min(each["once_ns"] for each in row["builders"] if each["by_hand"] or not by_hand)
    return sum(time_ns < best_ns for time_ns in row["routings_ns"])


def ideal(row: Row) -> float:
    """The bound of the best hand-made builder over that of all strategies."""
    return float(row["hand_bound_ns"] / row["bound_ns"])


def correlation(row: Row, which: str, rank: Callable[..., Any] = spearmanr) -> float:
    """The rank correlation of ``which`` prediction with measurements of held-out routings."""
    held_out = row["held_out"]
    found = rank([each[which] for each in held_out], [each["ns"] for each in held_out])
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
        f"{gain(row):.3f} times as fast as the best builder, {gain(row, by_hand=True):.3f} times "
        f"as the best hand-made one (ideal {ideal(row):.2f}); {hits(row)} of "
        f"{len(row['routings_ns'])} routings tried beat all builders, {hits(row, by_hand=True)} "
        "the hand-made ones"
    )
    if row["held_out"]:
        text += (
            f"; rank correlation {correlation(row, 'engine_ns'):.2f}, "
            f"{correlation(row, 'learned_ns'):.2f} with trials "
            f"(Kendall {correlation(row, 'engine_ns', kendalltau):.2f})"
        )
    return f"{text}; searched for {row['search_s']:.1f} s, {row['replays']} routings"


def goals(rows: Sequence[Row]) -> str:
    """All figures over all cases, each beside its goal, a line each."""
    least = min(gain(row) for row in rows)
    worth = [row for row in rows if round(ideal(row), 2) >= _IDEAL]
    of_hand = [gain(row, by_hand=True) for row in worth]
    tried = sum(len(row["routings_ns"]) for row in rows)
    beat, beat_hand = (
        f"{sum(hits(row, by_hand) for row in rows) / tried:.0%}" if tried else "no trial"
        for by_hand in (False, True)
    )
    held_out = [row for row in rows if row["held_out"]]
    table = [
        ("cases; of which not slower than the best builder, but for noise",
         f"{len(rows)}; {sum(gain(row) >= 1 - _NOISE for row in rows)}", f"{len(rows)}"),
        ("least gain over the best builder", f"{least:.3f}", f"{1 - _NOISE:.2f}"),
        (f"geometric mean over the best hand-made builder, ideal from {_IDEAL} on ({len(worth)})",
         f"{geometric_mean(of_hand):.3f}" if worth else "no case", f"{_HAND_GAIN}"),
        ("trials of routings that beat the best builder", beat, f"{_HIT_RATE:.0%}"),
        ("trials of routings that beat the best hand-made builder", beat_hand, "-"),
    ]  # fmt: skip
    for name, which in (("the engine", "engine_ns"), ("the engine with trials", "learned_ns")):
        if held_out:
            found = median(correlation(row, which) for row in held_out)
            table.append((f"rank correlation of {name}, median", f"{found:.2f}", f"{_CORRELATION}"))
    for name in (SEARCHED, ENGINE, SAMPLER, RANDOM):
        having = [row for row in rows if name in row["sides"]]
        if having:
            found = geometric_mean([gain(row, name) for row in having])
            table.append(
                (f"{name}: gain over the best builder ({len(having)})", f"{found:.3f}", "-")
            )
    slowest_s = max(row["search_s"] for row in rows)
    table.append(("search on the engine, at most", f"{slowest_s:.1f} s", "seconds"))
    width = max(len(what) for what, _, _ in table)
    head = ("", "found", "goal")
    return "\n".join(
        f"{what:<{width}}  {value:>9}  {goal:>9}" for what, value, goal in [head, *table]
    )


def _label(row: Row) -> str:
    workers, servers = (",".join(f"{rate:g}" for rate in row[role]) for role in _ROLES)
    return f"{row['model']}, links {workers}+{servers}, r = {row['ratio']:g}"


_ROLES = ("workers", "servers")


def _name(cell: Row) -> str:
    workers, servers = (len(cell[role]) for role in _ROLES)
    return f"{Path(cell['model']).stem.replace(':', '-')}-{workers}+{servers}-{cell['ratio']:g}"


if __name__ == "__main__":
    run_script(main)
