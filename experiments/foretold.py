"""How well recorded jobs foretell each other, replayed again without running anything.

    python experiments/foretold.py runs/gains/*-*-*-*

``gains.py`` keeps all runs of a cell, and each is recorded: the job with its defaults, the same
under other transports, trials of the optimizer, opponents, and the rounds. Of each transport, the
first run without compiled regions foretells all others, by a replay with their buckets, runtimes
and regions, or with their policies and partitions. So a change of the replay, or of what it is
given, is seen here in minutes, on jobs that ran long ago.

Printed are, for each other strategy, how many times as fast as the first run's it was foretold to
be and was, and the error in points: with times as they were recorded ("wall"), and with processor
time on shared cores ("cores", ``measure/processors.py``). "own" is the error of the replay of a
run's own record. Then come means per cell and of all. A machine is not equally fast all the time: a
run is compared with the one of the default job that was nearest in time, and a strategy that ran
several times has the median of these gains.

Columns of cores are empty for runs that were recorded before processor time was. ``--cores 2
--ns-per-byte 1.2`` says what the machine had. Strategies that cannot be foretold are named, and
wholly compiled models are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table
from script import run_script

from byteprophet.errors import UserError, warn
from byteprophet.job import Job, Processors
from byteprophet.job.region_costs import RegionCosts, read_region_costs
from byteprophet.job.strategy import Region
from byteprophet.job.strategy_file import read_strategy_file
from byteprophet.measure.processor_file import measured_use, message_ns_of
from byteprophet.measure.processors import Use
from byteprophet.measure.run import Run
from byteprophet.measure.servers import Measured, measure_run
from byteprophet.optimize.regions import times_with
from byteprophet.replay.all_reduce import with_strategy
from byteprophet.replay.predict import kind_of, warmup_of
from byteprophet.report.console import table_console
from byteprophet.runtime_settings import STRATEGY

_COSTS = Path("optimized", "regions", "region-costs.json")
WALL, CORES = WAYS = "wall", "cores"
_RECORDED = "recorded"  # in the names of runs of the job with its defaults
_OWN = 2
"""Of a strategy that ran several times, so many runs are replayed from their own records."""

Errors = tuple[float, float, float, float]
"""Of a replay of its own record (wall, cores), and of the gain (wall, cores); NaN: not known."""


@dataclass(frozen=True)
class Ran:
    """A recorded run. ``measured`` lacks the way CORES where no processor time is known."""

    name: str
    measured: dict[str, Measured]

    @property
    def job(self) -> Job:
        """With times of the wall clock."""
        return self.measured[WALL].job

    @property
    def took_ns(self) -> float:
        """The median of its iterations, without warm-up."""
        measured = self.measured[WALL]
        return float(np.median(measured.iteration_ns[warmup_of(measured) :]))


def main(arguments: Sequence[str]) -> None:
    """Replay, print."""
    options = _parse(arguments)
    for cell in options.cells:
        if not (cell / "recorded").exists():
            raise UserError(f"{cell}: has no file 'recorded': give directories that gains.py made")
    table = Table(
        "cell", "strategy", "runs", "measured ms", "own: wall", "cores", "gain: wall", "cores",
        "measured", "error: wall", "cores", box=box.SIMPLE,
    )  # fmt: skip
    errors: dict[str, list[Errors]] = {}
    for cell in options.cells:
        for row, each in rows_of(cell, options.cores, options.ns_per_byte):
            table.add_row(cell.name, *row)
            errors.setdefault(cell.name, []).append(each)
    console = table_console(150)
    console.print(table)
    sums = Table(
        "cell", "strategies", "own: wall", "cores", "error: wall", "cores", "worst: wall", "cores",
        box=box.SIMPLE,
    )  # fmt: skip
    everything = [each for found in errors.values() for each in found]
    for name, found in [*errors.items(), ("all", everything)]:
        if found:
            sums.add_row(name, *sums_of(found))
    console.print(sums)
    console.print("Errors are in percent (own) and in points of a gain; means of their sizes.")


def sums_of(errors: Sequence[Errors]) -> list[str]:
    """The number of strategies that were foretold, mean errors, and the worst ones of gains."""
    sizes = [
        [abs(value) for value in column if not np.isnan(value)]
        for column in zip(*errors, strict=True)
    ]
    means = [float(np.mean(column)) if column else np.nan for column in sizes]
    worst = [max(column, default=np.nan) for column in sizes[2:]]
    return [str(len(sizes[2])), *(_text(each, ".1f") for each in (*means, *worst))]


def rows_of(cell: Path, cores: float, ns_per_byte: float) -> Iterator[tuple[list[str], Errors]]:
    """Rows of the table, with the errors in them.

    Says which strategies are left out, and why.
    """
    costs = read_region_costs(cell / _COSTS) if (cell / _COSTS).exists() else None
    by_transport: dict[str, list[list[Ran]]] = {}
    for ran in _runs(cell, cores, ns_per_byte):
        groups = by_transport.setdefault(ran.job.transport, [])
        same = next((each for each in groups if _alike(each[0].job, ran.job)), None)
        if same is None:
            groups.append([ran])
        else:
            same.append(ran)
    for groups in by_transport.values():
        plain = [group for group in groups if not group[0].job.strategy.regions]
        if not plain:
            for group in groups:
                _leave_out(cell, group[0].job, "all runs under its transport have regions")
            continue
        source = plain[0][0]
        base = [ran for group in groups for ran in group if _is_default(ran, source)]
        for group in groups:
            if group is not plain[0] and all(ran in base for ran in group):
                continue
            job = group[0].job
            try:
                gains = [_gain(source.measured.get(way), job, costs) for way in WAYS]
            except UserError as error:
                _leave_out(cell, job, str(error))
                continue
            own = [_own_error(group[:_OWN], way) for way in WAYS]
            is_ns = float(np.median([ran.took_ns for ran in group]))
            gain = float(np.median([_nearest(base, ran).took_ns / ran.took_ns for ran in group]))
            if group is plain[0]:  # it foretells the others, and nothing foretells it
                gain, gains = float("nan"), [float("nan")] * len(gains)
            off = [100 * (each - gain) for each in gains]
            yield (
                [
                    _title(job),
                    str(len(group)),
                    f"{is_ns / 1e6:.1f}",
                    *(_text(each, "+.1f", "%") for each in own),
                    *(_text(each, ".3f") for each in (*gains, gain)),
                    *(_text(each, "+.1f") for each in off),
                ],
                (own[0], own[1], off[0], off[1]),
            )


def _gain(measured: Measured | None, wanted: Job, costs: RegionCosts | None) -> float:
    """How many times as fast the strategy of ``wanted`` is, by replay; NaN if nothing is measured.

    Raises ``UserError`` as ``changed`` does.
    """
    if measured is None:
        return float("nan")
    job = changed(measured.job, wanted, costs)
    return _replayed_ns(measured, measured.job) / _replayed_ns(measured, job)


def _own_error(ran: Sequence[Ran], way: str) -> float:
    """The median error of replays of runs from their own records, in percent; NaN: no runs."""
    own = [
        _replayed_ns(each.measured[way], each.measured[way].job) / each.took_ns
        for each in ran
        if way in each.measured
    ]
    return 100 * (float(np.median(own)) - 1) if own else float("nan")


def _leave_out(cell: Path, job: Job, why: str) -> None:
    warn(f"{cell.name}: {_title(job)}: is left out: {why}")


def _title(job: Job) -> str:
    return f"{job.title}, {len(job.strategy.regions)} region(s)"


def _text(value: float, form: str, unit: str = "") -> str:
    """``value`` in this form; "" if it is no number."""
    return "" if np.isnan(value) else format(value, form) + unit


def changed(job: Job, wanted: Job, costs: RegionCosts | None) -> Job:
    """``job`` under the strategy of ``wanted``.

    Raises ``UserError`` if this cannot be foretold.
    """
    strategy = wanted.strategy
    if strategy.regions and job.policy is not None:
        raise UserError("regions are not foretold with servers")
    if strategy.regions and costs is None:
        raise UserError(f"what its regions cost was not measured: there is no {_COSTS}")
    if job.policy is not None:
        if job.model.names != wanted.model.names:
            raise UserError("other gradients share buffers")
        cut = replace(job.strategy, partition_bytes=strategy.partition_bytes, keys=strategy.keys)
        return replace(job, policy=wanted.policy, strategy=cut)
    made = with_strategy(job, strategy)
    if strategy.regions:
        assert costs is not None
        made = replace(made, times=times_with(made.times, made.model, strategy, costs))
    return made


def _runs(cell: Path, cores: float, ns_per_byte: float) -> Iterator[Ran]:
    """The runs of a cell, but not those of wholly compiled models."""
    found = {path.parent for path in cell.rglob("config.toml")}
    for directory in sorted(found, key=lambda path: path.name):
        run = Run(directory)
        if "--compile" in run.config.get("command", ()):
            continue
        try:
            wall = measure_run(run)
            use = measured_use(run, wall)
            if use is None and cores and not (directory / "processors").is_dir():
                servers = tuple(range(wall.job.servers))
                machine = Processors(tuple(range(wall.job.workers)), cores, servers)
                use = Use((machine,), ns_per_byte, message_ns_of(wall.job))
            ways = {WALL: wall}
            if use is not None:
                ways[CORES] = measure_run(run, use)
        except UserError as error:
            warn(str(error))
            continue
        regions = _regions(run, cell)
        yield Ran(directory.name, {way: _with(each, regions) for way, each in ways.items()})


def _regions(run: Run, cell: Path) -> tuple[Region, ...]:
    """Those that the run was given; its own files do not have them."""
    given = run.config.get("environment", {}).get(STRATEGY)
    if not given:
        return ()
    path = Path(given)
    if not path.exists() and cell.name in path.parts:  # the cell ran elsewhere
        path = cell.joinpath(*path.parts[path.parts.index(cell.name) + 1 :])
    return read_strategy_file(path).strategy.regions


def _with(measured: Measured, regions: tuple[Region, ...]) -> Measured:
    job = measured.job
    return replace(measured, job=replace(job, strategy=replace(job.strategy, regions=regions)))


def _alike(one: Job, other: Job) -> bool:
    def key(job: Job) -> object:
        buckets = [(bucket.parameters, bucket.sharded) for bucket in job.strategy.buckets]
        sizes = job.strategy.partition_bytes, job.strategy.keys
        policy = job.policy and job.policy.name
        return job.strategy.runtime, buckets, job.strategy.regions, policy, sizes

    return key(one) == key(other)


def _is_default(ran: Ran, source: Ran) -> bool:
    """Whether a run is one of the job with its defaults, whose buckets may differ a little."""
    same_runtime = ran.job.strategy.runtime == source.job.strategy.runtime
    return _alike(ran.job, source.job) or (same_runtime and _RECORDED in ran.name)


def _nearest(base: Sequence[Ran], ran: Ran) -> Ran:
    """The one of ``base`` that began at the least distance from ``ran``."""
    began_ns = int(ran.measured[WALL].start_ns[0, 0])
    return min(base, key=lambda one: abs(int(one.measured[WALL].start_ns[0, 0]) - began_ns))


def _replayed_ns(recorded: Measured, job: Job) -> float:
    """The replay of ``job``, without the warm-up of ``recorded``."""
    times_ns = kind_of(job).iterations_ns(job)
    return float(np.median(times_ns[warmup_of(recorded) :]))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Foretell recorded jobs from each other, without running any.",
        epilog="example: python experiments/foretold.py runs/gains/gpt-*",
    )
    parser.add_argument("cells", nargs="+", type=Path, help="directories that gains.py made")
    parser.add_argument("--cores", type=float, default=0.0, help="of the machine; 0: as recorded")
    parser.add_argument(
        "--ns-per-byte", type=float, default=1.0, help="processor time of a byte that travels"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_script(main)
