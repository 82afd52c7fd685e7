"""Real hybrid-parallel jobs on this machine, beside what the simulator predicts of them.

    python experiments/hybrid.py
    python experiments/hybrid.py --lists

Small GPT and Llama models train over gloo on 1 to 4 ranks, with PyTorch's own data, tensor,
pipeline and context parallelism, FSDP2, recomputation, and combinations (``hybrid_parallel.py``).
Every rank has a host of its own behind a limited link. Compute is **paced**: four ranks share two
cores here, so operators take the time that they took in the same job while no other rank computed,
and all messages travel (``hybrid_operators.py`` and ``hybrid_device.py`` say how and why).
``--compute real`` computes instead. Operators are then slower beside those of other ranks and
beside collectives, whose threads take the same cores. By how much is measured, too
(``hybrid_beside.py``).

Nothing that is predicted is fitted on it. Operators come from ``byteprophet costs collect``, and
collectives from ones that ran alone, as jobs issue them (``hybrid_links.py``). A few constants are
calibrated on jobs of another model, as ``byteprophet simulate --calibrate`` does; which ones is
written down in ``hybrid_cases.py``. Printed are, for each strategy, the measured iteration time
(the lower quartile of iterations, and how far the upper one is), how long paced operators were in
it, the predicted time and its error, as measured costs alone give it and as calibrated, and a naive
baseline: FLOPs and bytes over the rates. Below are means, the worst error and Kendall's tau of the
order of the strategies of a model and number of ranks.

The second table has what operators take: paced, and as the simulator says (``hybrid_compute.py``).
``--operators`` prints only this, which needs one process at a time and no limited links.

The last table has collectives: what each rank called in one iteration, beside what the simulator
infers for it, exactly. ``--lists`` runs only this, without limited links, and does not depend on
what else runs on this machine. Our own runtime is not in it, because its exchange is no collective
of PyTorch. Times do depend on it: on a busy machine, run the command again when it is quiet, with
another ``--out``. What has been measured is kept in ``--out``, and is not measured again. Four
ranks need more than two cores have: give ``--ranks 3,4 --slowed 4``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from hybrid_beside import Beside, Lost, lost_of
from hybrid_cases import REPORTED, TUNED, TUNED_OWN, Case
from hybrid_compute import PARTS, paced_ns, simulated_ns
from hybrid_links import Measured, queue_ns_of, times_of
from hybrid_local import local_calls, works_for
from hybrid_operators import Table as OperatorTable
from hybrid_operators import (
    fastest,
    from_rows,
    keep_memory,
    read_operators,
    table_of,
    write_operators,
)
from hybrid_predict import (
    Counted,
    Ran,
    by_kind,
    calibrated,
    called,
    cluster_of,
    inferred,
    modelled_ns,
    naive_ns,
    own_slowdown,
    predicted_ns,
    slowed,
)
from hybrid_worker import Config
from rich.console import Console
from rich.table import Table
from scipy.stats import kendalltau
from script import check_least, progress_of, run_script

from byteprophet.cli.lists import split
from byteprophet.errors import UserError
from byteprophet.input_files import read_json
from byteprophet.launcher import JobSpec, make_run_directory, run_job
from byteprophet.network import format_rate, parse_rate, why_not_permitted
from byteprophet.report.console import lines_text, table_console
from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.costs.collect import PASSES, collect
from byteprophet.simulate.costs.collect import fastest as fastest_costs
from byteprophet.simulate.costs.table import CostTable, read_table, write_table
from byteprophet.whole_files import make_directory, write_whole

_WORKER = Path(__file__).parent / "hybrid_worker.py"
_LONGEST_S = 900.0
_COLLECTING_S = 60.0
_OPERATOR_ITERATIONS = 2
"""In which operators are measured, in each pass."""
_QUARTILES = (0.25, 0.75)


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, and print."""
    options = _parse(arguments)
    check_least(options, slowed=1, iterations=1)
    rate_bps = parse_rate(options.bandwidth)
    if rate_bps is None:
        raise UserError("--bandwidth unlimited: the simulator needs to know the rate")
    sizes = split(options.ranks, "--ranks")
    paced = options.compute == "paced"
    chosen = [
        case
        for case in (*TUNED, *(() if paced else TUNED_OWN), *REPORTED)
        if options.cases in case.name
        and str(case.ranks) in sizes
        and not (case.runtime and (options.lists or options.operators))  # has neither of these
    ]
    if not chosen:
        raise UserError("--cases, --ranks: there is no such job; see hybrid_cases.py")
    if options.slowed != 1 and not paced:
        raise UserError("--slowed: goes with --compute paced")
    if len(sizes) != 1 and not paced:
        raise UserError("--ranks: one number of ranks goes with --compute real")
    jobs = _Jobs(options.out, options.iterations, rate_bps, options.slowed, paced=paced)
    make_directory(options.out)
    counted = {case: jobs.counted(case, chosen) for case in chosen}
    console = table_console(150)
    if options.operators:
        console.print(_operators(jobs, chosen))
        return
    if not options.lists:
        console.print(_collectives(jobs, chosen))
        console.print(_times(jobs, chosen))
        if paced:
            _print(console, _operators(jobs, chosen))
    _print(console, _lists(counted))


def _print(console: Console, table: Table) -> None:
    """Print a table unless it is empty: jobs of our own runtime have no rows in all of them."""
    if table.row_count:
        console.print(table)


class _Jobs:
    """Runs jobs, and keeps what they gave in a directory."""

    def __init__(
        self, out: Path, iterations: int, rate_bps: int, slowed: int, *, paced: bool
    ) -> None:
        self._out = out
        self.slowed = slowed
        self._iterations = iterations
        self._paced = paced
        self.rate_bps = rate_bps // slowed
        self._say = progress_of("hybrid")

    def counted(self, case: Case, chosen: Sequence[Case]) -> list[Any]:
        """What each rank saw of an iteration of a case, which computed."""
        return self._of("counted", case, chosen, lambda cases: Config(_plain(cases)))

    def timed(self, case: Case, chosen: Sequence[Case]) -> list[Any]:
        """The iterations of a case behind limited links, on each rank."""

        def config(cases: list[Case]) -> Config:
            return Config(
                _plain(cases),
                iterations=self._iterations,
                operators=str(self.operators(chosen)) if self._paced else "",
                rate_bps=self.rate_bps,
                slowed=self.slowed,
            )

        return self._of(self._kind, case, chosen, config)

    @property
    def _kind(self) -> str:
        compute = f"paced-slowed{self.slowed}" if self._paced else "real"
        return f"{compute}-{format_rate(self.rate_bps)}-{self._iterations}"

    def links(self, chosen: Sequence[Case]) -> list[list[Measured]]:
        """The collectives that ran alone, with a row per rank in each.

        They are of jobs of as many ranks as the chosen ones have. Pairs are among them.
        """
        found: list[list[Measured]] = []
        sizes = {case.ranks for case in chosen if case.ranks > 1}
        if all(ranks % 2 for ranks in sizes):
            sizes.add(2)
        for ranks in sorted(sizes):
            config = Config([], links=True, rate_bps=self.rate_bps)
            seen = self._without_cases("links", f"links, {ranks} ranks", config, ranks)
            by_rank = [[Measured(*row) for row in rows] for rows in seen]
            found += [list(same) for same in zip(*by_rank, strict=True)]
        return found

    def costs(self, chosen: Sequence[Case]) -> CostTable:
        """The costs of one core, as slow as in the jobs."""
        path = self._out / "costs.json"
        if not path.exists() and self._paced:
            self.operators(chosen)  # measures both, if any operator is missing
        if not path.exists():
            write_table(path, self._collected(PASSES))
        longer = self.slowed if self._paced else 1 + self._lost(chosen).operators
        return slowed(read_table(path), longer)

    def _lost(self, chosen: Sequence[Case]) -> Lost:
        """What operators and collectives lose to each other in jobs of as many ranks."""
        (ranks,) = {case.ranks for case in chosen}
        config = Config([], beside=True, rate_bps=self.rate_bps)
        said = f"operators beside others, {ranks} ranks"
        seen = self._without_cases("beside", said, config, ranks)
        return lost_of([Beside(*rank) for rank in seen])

    def _without_cases(self, what: str, said: str, config: Config, ranks: int) -> list[Any]:
        """What each rank of a job says under ``what`` that only measures."""
        path = self._out / f"{what}-{format_rate(self.rate_bps)}-{ranks}.json"
        if not path.exists():
            self._say(said)
            seen = [rank[what] for rank in self._run(config, ranks, path.stem)]
            write_whole(path, json.dumps(seen) + "\n")
        found: list[Any] = read_json(path)
        return found

    def _collected(self, passes: int) -> CostTable:
        import torch

        torch.set_num_threads(1)
        keep_memory()
        return collect("cpu", _COLLECTING_S * passes / PASSES, self._say, passes=passes)

    def cluster(self, chosen: Sequence[Case]) -> Cluster:
        """The cluster, from operators and collectives that ran alone."""
        links = self.links(chosen)
        times, queue_ns = times_of(links), queue_ns_of(links)
        costs = self.costs(chosen)
        lost = None if self._paced else self._lost(chosen)
        return cluster_of(costs, times, self.rate_bps, queue_ns, lost)

    def paced_operators(self, chosen: Sequence[Case]) -> OperatorTable:
        """The times of all operators that ranks call, as slow as in the jobs."""
        known = read_operators(self.operators(chosen))
        return {
            one: paced._replace(time_ns=self.slowed * paced.time_ns) for one, paced in known.items()
        }

    def operators(self, chosen: Sequence[Case]) -> Path:
        """The times of all operators that ranks call.

        Costs are measured in the same passes if they are missing. The machine's speed may change by
        a fifth from one minute to the next.
        """
        path, costs = self._out / "operators.json", self._out / "costs.json"
        known = self._out / "operators-of.json"
        before = set(read_json(known)) if path.exists() and known.exists() else set()
        wanted = {case: self._called(case, chosen) - before for case in chosen}
        if not any(wanted.values()):
            return path
        groups: dict[tuple[int, str], list[Case]] = {}
        for case in _covering(wanted):
            groups.setdefault((case.ranks, case.runtime), []).append(case)

        def config(cases: list[Case]) -> Config:
            turn = str((self._out / "turn").absolute())
            return Config(_plain(cases), iterations=_OPERATOR_ITERATIONS, turn=turn)

        tables: list[OperatorTable] = []
        collected: list[CostTable] = []
        for number in range(1, PASSES + 1):
            if not costs.exists():
                collected.append(self._collected(passes=1))
            rows: list[Any] = []
            for (ranks, runtime), cases in groups.items():
                self._say(f"operators, pass {number} of {PASSES}: {len(cases)} jobs, {ranks} ranks")
                seen = self._run(config(cases), ranks, _label("operators", ranks, runtime))
                rows += [rank[case.name]["operations"] for case in cases for rank in seen]
            tables.append(table_of(rows))
        table = read_operators(path) if before else {}
        write_operators(path, fastest(tables) | table)
        if collected:
            write_table(costs, fastest_costs(collected))
        write_whole(known, json.dumps(sorted(before.union(*wanted.values()))) + "\n")
        return path

    def _called(self, case: Case, chosen: Sequence[Case]) -> set[str]:
        """The operators that ranks call, as texts."""
        ranks = self.counted(case, chosen)
        return {str(one) for rank in ranks for one in from_rows(rank["operations"])}

    def _of(self, kind: str, case: Case, chosen: Sequence[Case], config: Any) -> list[Any]:
        """What ranks saw of ``case``.

        If it is missing, it runs with all others that are and that have as many ranks and the same
        runtime.
        """
        path = self._path(kind, case)
        if not path.exists():
            group = (case.ranks, case.runtime)
            wanted = [one for one in chosen if (one.ranks, one.runtime) == group]
            missing = [one for one in wanted if not self._path(kind, one).exists()]
            self._say(f"{kind}: {len(missing)} jobs of {case.ranks} ranks")
            label = _label(kind, case.ranks, case.runtime)
            ranks = self._run(config(missing), case.ranks, label)
            for one in missing:
                seen = json.dumps([rank[one.name] for rank in ranks])
                write_whole(self._path(kind, one), seen + "\n")
        found: list[Any] = read_json(path)
        return found

    def _path(self, kind: str, case: Case) -> Path:
        name = case.name.replace(" ", "-").replace("=", "")
        make_directory(self._out / kind)
        return self._out / kind / f"{name}.json"

    def _run(self, config: Config, ranks: int, label: str) -> list[dict[str, Any]]:
        directory = make_run_directory(self._out / "runs", label)
        limited = bool(config.rate_bps)
        reason = why_not_permitted() if limited else None
        if reason is not None:
            raise UserError(f"limited links need network namespaces: {reason}; use --lists")
        file = directory / "hybrid.json"
        write_whole(file, json.dumps(asdict(config)) + "\n")
        spec = JobSpec(
            command=(sys.executable, str(_WORKER), str(file)),
            run_directory=directory,
            workers=ranks,
            servers=0,
            namespaces=limited,
            bandwidth_bps=config.rate_bps or None,
            environment={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            timeout_s=_LONGEST_S,
            forks=True,
        )

        def echo(role: str, line: str) -> None:
            if role == "worker-0" and line.startswith("hybrid: "):
                self._say(line.removeprefix("hybrid: "))

        run_job(spec, echo).check()
        paths = [directory / f"hybrid-{rank}.json" for rank in range(ranks)]
        return [read_json(path) for path in paths]


def _covering(wanted: dict[Case, set[str]]) -> list[Case]:
    """A few jobs that have everything that is wanted of any."""
    found: list[Case] = []
    missing = set().union(*wanted.values())
    while missing:
        found.append(max(wanted, key=lambda case: len(wanted[case] & missing)))
        missing -= wanted[found[-1]]
    return found


def _label(kind: str, ranks: int, runtime: str) -> str:
    return f"{kind}-{ranks}{runtime and f'-{runtime}'}"


def _plain(cases: Sequence[Case]) -> list[list[str]]:
    return [[case.model, case.line] for case in cases]


def measured_ns(ranks: Sequence[Any]) -> tuple[float, float]:
    """The lower and the upper quartile of an iteration: from the last begin to the last end."""
    iterations = np.array([rank["iterations"] for rank in ranks])
    times_ns = iterations[:, :, 1].max(axis=0) - iterations[:, :, 0].max(axis=0)
    low, high = (float(np.quantile(times_ns, at)) for at in _QUARTILES)
    return low, high


def _busiest(ranks: Sequence[Any]) -> str:
    """How long paced operators took in an iteration, on the rank where they took longest (ms)."""
    found = [float(np.median(rank["busy_ns"])) for rank in ranks if rank["busy_ns"]]
    return f"{max(found) / 1e6:.0f}" if found else ""


def _times(jobs: _Jobs, chosen: Sequence[Case]) -> Table:
    costs = jobs.costs(chosen)
    alone = jobs.cluster(chosen)
    ran = {}
    slowest = {}
    for case in chosen:
        low, slowest[case] = measured_ns(jobs.timed(case, chosen))
        ran[case] = Ran(case, case.program, low)
    tuned = [ran[case] for case in chosen if case in TUNED]
    fitted = calibrated(alone, tuned) if tuned else None
    own = [ran[case] for case in chosen if case in TUNED_OWN]
    beside_own = own_slowdown(own[0], fitted.cluster) if own and fitted is not None else None
    table = Table(box=None, pad_edge=False, title_justify="left", title="Iteration times (ms)")
    for name in ("model", "strategy"):
        table.add_column(name)
    columns = ("measured", "to", "operators", "predicted", "error", "uncalibrated", "naive")
    for name in columns:
        table.add_column(name, justify="right")
    scores: list[_Score] = []
    for case in chosen:
        one = ran[case]
        cluster = fitted.cluster if fitted is not None else alone
        predicted = predicted_ns(case, cluster, jobs.slowed, beside_own)
        score = _Score(
            case,
            one.measured_ns,
            predicted,
            predicted_ns(case, alone, jobs.slowed),
            naive_ns(case, costs, jobs.rate_bps),
        )
        scores.append(score)
        table.add_row(
            case.model,
            case.line,
            f"{one.measured_ns / 1e6:.0f}",
            f"{slowest[case] / 1e6:.0f}",
            _busiest(jobs.timed(case, chosen)),
            f"{predicted / 1e6:.0f}",
            *(f"{error:+.1%}" for error in score.errors),
        )
    lines = [
        f"gloo alone: {alone.node.base_ns / 1e6:.2f} ms per collective, "
        f"{alone.network.step_ns / 1e6:.2f} ms per step, {alone.network.efficiency:.3f} of the "
        f"rate, {alone.network.queue_ns / 1e6:.1f} ms in the queue of a busy link"
    ]
    if fitted is not None:
        lines += [
            f"calibrated on {len(tuned)} job(s) of another model",
            *(
                f"calibrated: {was.name} {was.value:.4g} -> {now.value:.4g}"
                for was, now in zip(fitted.before, fitted.after, strict=True)
                if was.name in fitted.set_by_runs
            ),
        ]
    if beside_own is not None:
        lines.append(f"calibrated: slowdown beside our own exchange {beside_own:.4g}")
    lines += _summaries(scores)
    table.caption = lines_text(lines, "table.caption")
    table.caption_justify = "left"
    return table


def _collectives(jobs: _Jobs, chosen: Sequence[Case]) -> Table:
    """Collectives that ran alone: as measured, and as the fitted constants alone give them."""
    table = Table(
        box=None,
        pad_edge=False,
        title_justify="left",
        title="Collectives alone: measured, modelled (ms)",
    )
    times = times_of(jobs.links(chosen))
    modelled = modelled_ns(times, jobs.cluster(chosen))
    cells: dict[tuple[str, str], list[str]] = {}
    for one, model_ns in zip(times, modelled, strict=True):
        row = cells.setdefault((one.program.kind.value, str(one.program.ranks)), [])
        row.append(f"{one.measured_ns / 1e6:.1f}, {model_ns / 1e6:.1f}")
    table.add_column("kind")
    table.add_column("ranks", justify="right")
    for size_bytes in dict.fromkeys(round(one.program.size_bytes) for one in times):
        table.add_column(f"{size_bytes >> 10} KiB", justify="right")
    for what, row in cells.items():
        table.add_row(*what, *row)
    return table


def _operators(jobs: _Jobs, chosen: Sequence[Case]) -> Table:
    """What operators take on the rank that computes longest."""
    table = Table(
        box=None, pad_edge=False, title_justify="left", title="Operators: paced, simulated (ms)"
    )
    for name in ("model", "strategy"):
        table.add_column(name)
    for name in (*PARTS, "all", "error"):
        table.add_column(name, justify="right")
    known = jobs.paced_operators(chosen)
    cluster = cluster_of(jobs.costs(chosen), (), jobs.rate_bps)
    errors = []
    for case in (one for one in chosen if not one.runtime):  # whose optimizer is on a thread
        rows = [paced_ns(rank["operations"], known) for rank in jobs.counted(case, chosen)]
        busiest = max(range(case.ranks), key=lambda rank: rows[rank].total())
        per_stage = case.ranks // case.strategy.mesh.pp
        simulated = simulated_ns(case.program, cluster, busiest // per_stage)
        paced = rows[busiest]
        errors.append(simulated.total() / paced.total() - 1)
        pairs = [(paced[part], simulated[part]) for part in PARTS]
        pairs.append((paced.total(), simulated.total()))
        cells = [f"{one / 1e6:.0f}, {other / 1e6:.0f}" for one, other in pairs]
        table.add_row(case.model, case.line, *cells, f"{errors[-1]:+.1%}")
    if errors:
        table.caption = f"mean error {np.abs(errors).mean():.1%}"
        table.caption_justify = "left"
    return table


class _Score:
    """A measured time, and the errors of predictions of it: calibrated, uncalibrated, naive."""

    def __init__(self, case: Case, measured_ns: float, *predicted_ns: float) -> None:
        self.case = case
        self.measured_ns = measured_ns
        self.predicted_ns = predicted_ns
        self.errors = [each / measured_ns - 1 for each in predicted_ns]


def _summaries(scores: Sequence[_Score]) -> list[str]:
    lines = []
    for name, cases in (("reported", REPORTED), ("tuned on", (*TUNED, *TUNED_OWN))):
        some = [score for score in scores if score.case in cases]
        if not some:
            continue
        errors = np.array([score.errors for score in some])
        for at, what in enumerate(("predicted", "uncalibrated", "naive")):
            worst = errors[np.abs(errors[:, at]).argmax(), at]
            lines.append(
                f"{name}, {len(some)} jobs, {what}: mean error {np.abs(errors[:, at]).mean():.1%}, "
                f"worst {worst:+.1%}{_order(some, at)}"
            )
    return lines


def _order(scores: Sequence[_Score], at: int) -> str:
    """Kendall's tau of the strategies of each model and number of ranks."""
    found = []
    for key in sorted({(score.case.model, score.case.ranks) for score in scores}):
        some = [score for score in scores if (score.case.model, score.case.ranks) == key]
        if len(some) < 4:
            continue
        tau = kendalltau(
            [score.measured_ns for score in some], [score.predicted_ns[at] for score in some]
        ).statistic
        found.append(f"{key[0]} on {key[1]} ranks {tau:.2f}")
    return f"; Kendall's tau: {', '.join(found)}" if found else ""


def _lists(counted: dict[Case, list[Any]]) -> Table:
    table = Table(box=None, pad_edge=False, title_justify="left", title="Collectives per iteration")
    for name in ("model", "strategy"):
        table.add_column(name)
    for name in ("called", "inferred", "bytes called", "inferred"):
        table.add_column(name, justify="right")
    table.add_column("lists")
    table.add_column("LocalTensorMode")
    equal = 0
    listed = {case: ranks for case, ranks in counted.items() if not case.runtime}
    for case, ranks in listed.items():
        infers = inferred(case)
        per_stage = len(ranks) // len(infers)
        pairs = [
            (called(seen["calls"]), infers[rank // per_stage]) for rank, seen in enumerate(ranks)
        ]
        differences = sorted(
            {text for ours, theirs in pairs for text in _differences(ours, theirs)}
        )
        differences += sorted({f"unknown {name}" for seen in ranks for name in seen["unknown"]})
        equal += not differences
        table.add_row(
            case.model,
            case.line,
            *(str(sum(sum(calls.values()) for calls in each)) for each in zip(*pairs, strict=True)),
            *(
                f"{sum(sum(by_kind(calls).values()) for calls in each):,}"
                for each in zip(*pairs, strict=True)
            ),
            "; ".join(differences) or "equal",
            _local(case),
        )
    table.caption = f"{equal} of {len(listed)} jobs: every rank's list equals the inferred one"
    table.caption_justify = "left"
    return table


def _local(case: Case) -> str:
    """What PyTorch's LocalTensorMode says, where it works, with one sample per micro-batch."""
    if not works_for(case):
        return ""
    items = (each for each in case.line.split() if not each.startswith("micro_batch="))
    small = Case(case.model, " ".join(items))
    return "; ".join(_differences(local_calls(small), inferred(small)[0])) or "equal"


def _differences(ours: Counted, theirs: Counted) -> list[str]:
    """Kinds whose bytes differ; those that are only cut otherwise."""
    found = []
    bytes_called, bytes_inferred = by_kind(ours), by_kind(theirs)
    for kind, axes in sorted(bytes_called.keys() | bytes_inferred.keys()):
        lists = [
            {call: count for call, count in each.items() if call[:2] == (kind, axes)}
            for each in (ours, theirs)
        ]
        if lists[0] == lists[1]:
            continue
        was, is_ = bytes_called[kind, axes], bytes_inferred[kind, axes]
        if was == is_:
            counts = [sum(each.values()) for each in lists]
            found.append(f"{axes} {kind}: {counts[0]} parts, not {counts[1]}")
        else:
            found.append(f"{axes} {kind}: {was:,} bytes, not {is_:,}")
    return found


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Run hybrid-parallel jobs, and predict them.",
        epilog="example: python experiments/hybrid.py --cases 'gpt dp=2' --lists",
    )
    parser.add_argument("--bandwidth", default="500mbit", help="of each rank's link")
    parser.add_argument("--iterations", type=int, default=7, help="measured, of each job")
    parser.add_argument(
        "--slowed", type=int, default=1, help="compute and links so many times slower"
    )
    parser.add_argument("--cases", default="", help="only jobs whose name contains this text")
    parser.add_argument("--ranks", default="1,2,3,4", help="only jobs of so many ranks, by commas")
    parser.add_argument("--compute", choices=("paced", "real"), default="paced")
    parser.add_argument(
        "--operators", action="store_true", help="only what operators take; needs no limited links"
    )
    parser.add_argument("--lists", action="store_true", help="only collectives; times nothing")
    parser.add_argument("--out", type=Path, default=Path("runs/hybrid"), help="of what is kept")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_script(main)
