"""Runs candidates as real jobs, in rounds, and keeps what they measured.

In each round the baseline runs, and then each of the round's candidates once. A candidate's
measurement is the ratio of its median iteration to the baseline's in the same round, so that what
changes on the machine from round to round is not taken for a difference of strategies. Finished
runs are kept in a file per round (``optimize/rounds.py``): a search that was stopped goes on behind
the last of them.

A *runner* runs the baseline, or the same command or workload under strategy files. A workload's
candidates share jobs where they can (``bench/in_turn.py``), because starting and ending a job takes
longer than its iterations. A recorded command runs afresh for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from byteprophet.bench import Case, Plan
from byteprophet.bench.case import WARMUP_ITERATIONS, strategy_case
from byteprophet.bench.execute import check_case
from byteprophet.bench.in_turn import job_key, run_in_turn
from byteprophet.errors import UserError
from byteprophet.job.strategy import DEAR_PLANNED
from byteprophet.job.strategy_file import Used, read_strategy_file, write_strategy
from byteprophet.job.times import Int64Array, iteration_times_ns
from byteprophet.launcher import JobSpec, check_job, make_run_directory, run_job
from byteprophet.launcher.given_strategy import with_strategy
from byteprophet.measure.run import Run
from byteprophet.measure.tensors import by_rank, whole_iterations
from byteprophet.network import why_not_permitted
from byteprophet.optimize.recorded import recorded_again
from byteprophet.optimize.rounds import Rounds
from byteprophet.schedulers import DEFAULT
from byteprophet.strategy.resources import HostResources, Resources
from byteprophet.strategy.search.bases import bases_of_workload
from byteprophet.strategy.search.candidates import Candidate
from byteprophet.timeline.tables import SPANS, Kind
from byteprophet.whole_files import make_directory
from byteprophet.workload.model import Workload

BASELINE = "baseline"
"""What runs beside the candidates of each round."""

Runner = Callable[[Mapping[str, Path | None]], Iterable[tuple[str, Int64Array]]]
"""Takes strategy files, or None (the baseline), by label. Gives each label, as soon as it has run,
with the times of its iterations, in ns, without warm-up."""

_IN_TURN = 8
_IN_TURN_BYTES = 256 << 20
"""So many candidates, and so many bytes of gradients, share a job at most: each candidate leaves
its buffers in workers and servers. A candidate of a larger model has a job of its own."""
_WARMUP = 5  # iterations, but at most half of them


@dataclass(frozen=True)
class Trial:
    """A candidate that ran. By round: ``ratios`` to the baseline, ``times_ns`` of an iteration."""

    candidate: Candidate
    ratios: tuple[float, ...]
    times_ns: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """The median of the rounds."""
        return median(self.ratios)

    @property
    def iteration_ns(self) -> int:
        """The median of the rounds."""
        return int(median(self.times_ns))


class Trials:
    """All trials of a search, in the order in which candidates first ran.

    ``directory``: where rounds are kept. ``of`` names the baseline: rounds of another one are run
    again. ``runner``: None if nothing is ever run. ``file_of``: where a candidate's strategy is.
    """

    def __init__(
        self,
        directory: Path,
        of: str,
        runner: Runner | None,
        file_of: Callable[[Candidate], Path],
        say: Callable[[str], None],
    ) -> None:
        self._directory, self._of, self._say = directory, of, say
        self._runner, self._file_of = runner, file_of
        self._rounds = 0
        self._found: dict[str, Trial] = {}
        self._baseline_ns: list[int] = []

    @property
    def count(self) -> int:
        """How many runs of candidates there have been."""
        return sum(len(trial.ratios) for trial in self._found.values())

    @property
    def baseline_ns(self) -> int | None:
        """The baseline's iteration, the median of all rounds; None: there was no round yet."""
        return int(median(self._baseline_ns)) if self._baseline_ns else None

    @property
    def all(self) -> list[Trial]:
        """The trials so far."""
        return list(self._found.values())

    def run(self, candidates: Sequence[Candidate]) -> None:
        """Run a round: the baseline and ``candidates``, each once, but those that have finished."""
        assert self._runner is not None
        self._rounds += 1
        number = self._rounds
        digests = {each.name: each.digest for each in candidates}
        kept = Rounds(self._directory / f"round-{number}.json", {BASELINE: self._of, **digests})
        files: dict[str, Path | None] = {BASELINE: None}
        files |= {each.name: self._file_of(each) for each in candidates}
        missing = {name: path for name, path in files.items() if not kept.done(name)}
        if missing:
            self._say(f"round {number}: {', '.join(missing)}")
        for name, times_ns in self._runner(missing):
            kept.add(name, times_ns)
        was_ns = _median_ns(kept, BASELINE)
        self._baseline_ns.append(was_ns)
        for each in candidates:
            is_ns = _median_ns(kept, each.name)
            before = self._found.get(each.digest, Trial(each, (), ()))
            self._found[each.digest] = replace(
                before,
                ratios=(*before.ratios, is_ns / was_ns),
                times_ns=(*before.times_ns, is_ns),
            )


def _median_ns(kept: Rounds, name: str) -> int:
    (times_ns,) = kept.iteration_ns(name, 1)
    return int(np.median(times_ns))


def recorded_runner(config: Mapping[str, Any], resources: Resources | None, runs: Path) -> Runner:
    """Runs the command of a recorded run, whose ``config.toml`` is ``config``.

    Its links are limited as ``resources`` say, on emulated hosts; None: they are as they were.
    Raises ``UserError`` if it cannot run here.
    """
    recorded = recorded_again(config, runs)
    if recorded.steps:
        raise UserError("--trials: its links changed in mid-run (--step), so rounds would differ")

    def spec_of(path: Path | None) -> JobSpec:
        spec = recorded
        if path is not None:
            spec = with_strategy(recorded, read_strategy_file(path), path)
        return spec if resources is None else _on_links(spec, resources)

    check_job(spec_of(None))

    def run(files: Mapping[str, Path | None]) -> Iterator[tuple[str, Int64Array]]:
        for label, path in files.items():
            directory = make_run_directory(runs, label)
            run_job(replace(spec_of(path), run_directory=directory)).check()
            yield label, recorded_times_ns(Run(directory))

    return run


def _on_links(spec: JobSpec, resources: Resources) -> JobSpec:
    """``spec`` with the links of ``resources``; a link has one rate, that of its slower way.

    Servers keep theirs if ``resources`` have none.
    """
    worker_bps, served_bps = _limits_bps(resources.workers), spec.server_bandwidth_bps
    if resources.servers:
        served_bps = _limits_bps(resources.servers[: spec.servers])
    return replace(
        spec,
        namespaces=spec.namespaces or bool(worker_bps or served_bps),
        worker_bandwidth_bps=worker_bps,
        server_bandwidth_bps=served_bps,
        bandwidth_bps=None,
    )


def _limits_bps(hosts: Sequence[HostResources]) -> dict[int, int]:
    rates_bps = enumerate(host.slower_bps for host in hosts)
    return {number: rate_bps for number, rate_bps in rates_bps if rate_bps is not None}


def recorded_times_ns(run: Run) -> Int64Array:
    """The time of each iteration that all workers recorded, without warm-up.

    Raises ``UserError`` if there is none.
    """
    spans = by_rank(run.aligned.events, SPANS, range(run.config["workers"]))
    common = set.intersection(*(set(whole_iterations(each.rows).tolist()) for each in spans))
    if not common:
        raise UserError(f"{run.directory}: no iteration was recorded completely")
    numbers = np.array(sorted(common))
    bounds_ns = []
    for each in spans:
        rows = each.rows[each.rows["kind"] == Kind.ITERATION]
        rows = rows[np.isin(rows["iteration"], numbers)]
        rows = rows[np.argsort(rows["iteration"], kind="stable")]
        bounds_ns.append((rows["begin_ns"], rows["end_ns"]))
    times_ns = iteration_times_ns(*np.stack(bounds_ns, axis=1))
    return times_ns[min(_WARMUP, len(times_ns) // 2) :]


@dataclass(frozen=True)
class Paced:
    """How a workload is run: ``name`` as users give it, scaled to ``compute_ns`` (None: as it is).

    ``iterations``: measured ones of a trial, after ``warmup_iterations``.
    """

    name: str
    compute_ns: int | None = None
    iterations: int = 6
    warmup_iterations: int = WARMUP_ITERATIONS


def case_of(paced: Paced, resources: Resources) -> Case:
    """The baseline of a workload: the default policy, or ``dear-planned`` if it has no servers.

    Raises ``UserError`` if links cannot be limited here.
    """
    reason = why_not_permitted()
    if reason is not None:
        raise UserError(f"--trials: limited links need network namespaces: {reason}")
    servers = len(resources.servers)
    return Case(
        paced.name,
        DEFAULT,
        None,
        workers=len(resources.workers),
        servers=servers,
        compute_ns=paced.compute_ns,
        worker_bandwidth_bps=_limits_bps(resources.workers),
        server_bandwidth_bps=_limits_bps(resources.servers),
        runtime="byteps" if servers else DEAR_PLANNED,
    )


def _planned(case: Case, workload: Workload, resources: Resources, runs: Path) -> Case:
    """``case`` with its buckets from a file, because it would plan them only behind a trial."""
    mesh = bases_of_workload(workload, resources).mesh
    path = runs / f"{BASELINE}.json"
    make_directory(runs)
    write_strategy(path, Used(mesh.model, mesh.strategy, 0))
    return strategy_case(case, path)


def paced_runner(paced: Paced, workload: Workload, resources: Resources, runs: Path) -> Runner:
    """Runs paced jobs of ``workload``. Raises ``UserError`` if they cannot run here."""
    case = case_of(paced, resources)
    if not case.servers:
        case = _planned(case, workload, resources, runs)
    plan = Plan((case,), paced.iterations, 1, paced.warmup_iterations, idle_s=0.0)
    check_case(case, plan, runs, namespaces=True)

    def run(files: Mapping[str, Path | None]) -> Iterator[tuple[str, Int64Array]]:
        jobs: dict[object, dict[str, Case]] = {}
        for label, path in files.items():
            made = case if path is None else strategy_case(case, path)
            jobs.setdefault(job_key(made), {})[label] = made
        together = max(1, min(_IN_TURN, _IN_TURN_BYTES // workload.size_bytes))
        for cases in jobs.values():
            left = iter(cases.items())
            while batch := list(islice(left, together)):
                found = run_in_turn([made for _, made in batch], plan, workload, runs, "trials")
                yield from zip((label for label, _ in batch), found, strict=True)

    return run
