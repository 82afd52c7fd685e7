"""``byteprophet strategy search`` and ``resources``: the best strategy for given hosts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from byteprophet.cli.runs import run_meant, run_or_file
from byteprophet.cli.targets import check_targets
from byteprophet.digests import digest_of
from byteprophet.errors import UserError
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.network import format_rate
from byteprophet.optimize.recorded import digest_of_recording
from byteprophet.report.console import facts_table, ms_text, progress_of, table_console
from byteprophet.strategy.resources import Resources, read_resources, write_resources
from byteprophet.strategy.search.bases import Bases, bases_of_run, bases_of_workload
from byteprophet.strategy.search.candidates import ALLOW
from byteprophet.strategy.search.kept import FILE as KEPT
from byteprophet.strategy.search.outcome import Outcome
from byteprophet.strategy.search.run import search as search_strategies
from byteprophet.strategy.search.trials import Paced, Runner, paced_runner, recorded_runner
from byteprophet.whole_files import make_directory, write_whole
from byteprophet.workload import load, to_toml

_SHOWN = 10
"""Candidates in the table; the JSON file has all."""

_ALLOW_HELP = (
    "Let gradients travel compressed, if that is faster: PATTERN=TYPE,NAME=VALUE,... May be given "
    "several times."
)

SEARCH_HELP = """Search for the fastest strategy of any architecture on given hosts and links.

SUBJECT is a recorded run or a workload (a built-in name, or a file). --resources is a file
(docs/formats.md), or a recorded run whose hosts and links are meant; without it, those of SUBJECT.
Candidates are the strategies of all builders, and mixes of servers and a mesh that a formula and
local search find on a model of the links. With --trials N, N of them run as real jobs, in rounds
beside the recorded job (of a workload: beside prophet, or dear-planned without servers), and what
these measure corrects the model. It says how far the best is above the bound of all strategies,
what each link carries and what limits. With --allow RULE, candidates without servers are also
looked at with compressed gradients (docs/compression.md). The same command goes on where an earlier
one was stopped.

Example: byteprophet strategy search runs/20261126T014735Z-dear --resources cluster.toml --trials 8

Example: byteprophet strategy search resnet50 --resources cluster.toml --out found

Example: byteprophet strategy search runs/RUN --allow "*.weight=topk,k=0.01" --trials 4
"""

RESOURCES_HELP = """Show a resource specification: hosts, links, devices and roles.

PATH is a file, or a recorded run. With --out, it is written as a file, which may then be changed.

Example: byteprophet strategy resources runs/20261126T014735Z-dear --out cluster.toml
"""


def register(group: typer.Typer) -> None:
    """Adds the commands to those of ``byteprophet strategy``."""
    group.command("search", help=SEARCH_HELP)(search)
    group.command("resources", help=RESOURCES_HELP)(resources)


def search(
    subject: Annotated[str, typer.Argument(help="A recorded run, or a workload.")],
    resources_path: Annotated[
        Path | None,
        typer.Option("--resources", metavar="FILE", help="Hosts and links: a file, or a run."),
    ] = None,
    trials: Annotated[int, typer.Option(help="So many runs of candidates as real jobs.")] = 0,
    budget_s: Annotated[float, typer.Option(help="Seconds of search on the model.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Seed of the random draws of the search.")] = 0,
    compute_ns: Annotated[
        int | None, typer.Option(help="Rescale a workload's forward and backward to this total.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(ALLOW, metavar="RULE", help=_ALLOW_HELP)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where all files are saved; default: in searched/.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Save the result as JSON.")
    ] = None,
) -> int:
    """See SEARCH_HELP."""
    if trials < 0:
        raise UserError(f"--trials {trials}: must be at least 0")
    if not 0 <= budget_s < 1e6:
        raise UserError(f"--budget-s {budget_s}: must be from 0 to less than 1e6 seconds")
    say = progress_of("search")
    is_run, allowed = Path(subject).is_dir(), allow or []
    if is_run:
        subject = str(run_meant(Path(subject)))
    if allowed and trials and not is_run:
        raise UserError(
            f"{ALLOW}: trials of a workload are paced jobs, whose gradients mean nothing"
        )
    directory = out or Path("searched") / Path(subject).resolve().name
    if is_run:
        if compute_ns is not None:
            raise UserError("--compute-ns: only a workload can be rescaled")
        given = _resources(resources_path or Path(subject))
        on_others = resources_path is not None
        bases, of, runner = _recorded(Path(subject), given, directory, trials, on_others)
    else:
        if resources_path is None:
            raise UserError("--resources: a workload needs hosts and links to run on")
        given = _resources(resources_path)
        bases, of, runner = _workload(subject, compute_ns, given, directory, trials)
    make_directory(directory)
    read = [Path(subject), *([] if resources_path is None else [resources_path])]
    own = {"the strategy": directory / "strategy.json", "the search": directory / KEPT}
    check_targets({**own, "--json": json_file}, read)
    found = search_strategies(
        bases,
        directory,
        of=_with_leave(of, allowed),
        trials=trials,
        budget_s=budget_s,
        seed=seed,
        runner=runner,
        say=say,
        allowed=allowed,
    )
    console = table_console()
    _print(found, console, str(directory / "strategy.json"))
    if json_file is not None:
        write_whole(json_file, json.dumps(found.as_json(), indent=1) + "\n")
    return 0


def _resources(path: Path) -> Resources:
    return read_resources(run_or_file(path))


def _recorded(
    path: Path, given: Resources, directory: Path, trials: int, on_others: bool
) -> tuple[Bases, str, Runner | None]:
    """``on_others``: trials run on the links of ``given``, and not on those of the record."""
    run = Run(path)
    measured = measure_run(run)
    bases = bases_of_run(run, measured, given)
    runner = None
    if trials:
        links = given if on_others else None
        runner = recorded_runner(run.config, links, directory / "runs")
    recording = digest_of_recording(run.config, measured.job)
    return bases, digest_of(recording, given.digest, str(on_others)), runner


def _workload(
    name: str, compute_ns: int | None, given: Resources, directory: Path, trials: int
) -> tuple[Bases, str, Runner | None]:
    workload = load(name)
    if compute_ns is not None:
        workload = workload.scaled(compute_ns)
    bases = bases_of_workload(workload, given)
    runner = None
    if trials:
        runner = paced_runner(Paced(name, compute_ns), workload, given, directory / "runs")
    return bases, digest_of(to_toml(workload), given.digest), runner


def _with_leave(of: str, allowed: Sequence[str]) -> str:
    """The digest ``of`` a search; another one if rules allow more."""
    if not allowed:
        return of
    return digest_of(of, *allowed)


def _print(found: Outcome, console: Console, saved: str) -> None:
    console.print(_result(found))
    console.print(_candidates(found))
    console.print(f"ended: {found.ended}", soft_wrap=True)
    console.print(f"saved: {saved}", soft_wrap=True)


def _result(found: Outcome) -> Table:
    table = facts_table(f"{found.best.name}: {found.best.job.title}")
    how = "measured" if found.is_measured else "predicted"
    table.add_row(how, ms_text(found.iteration_ns), f"predictions are {found.engine_error:.1%} off")
    gain = found.baseline_ns / found.iteration_ns
    beside = f"{gain:.3f} times as long" + ("" if gain > 1 else ": keep it, nothing is faster")
    table.add_row("baseline", ms_text(found.baseline_ns), beside)
    gap = f"{found.gap:.1%} above it; no strategy that sums every byte in one place is below it"
    table.add_row("bound", ms_text(found.bound_ns), gap)
    explanation = found.explanation
    table.add_row("computation", ms_text(explanation.compute_ns), "of the slowest worker")
    for each in explanation.loads:
        share = f"{each.busy_ns / found.iteration_ns:.0%} of the time" if each.busy_ns else ""
        busy = ms_text(each.busy_ns) if each.busy_ns else "no limit"
        table.add_row(each.link, busy, f"{each.size_bytes / 1e6:.1f} MB  {share}")
    table.add_row("limit", "", explanation.limit)
    table.add_row("searched", f"{found.search_s:.1f} s", f"{found.replays} routings replayed")
    return table


def _candidates(found: Outcome) -> Table:
    table = Table(title="candidates", title_justify="left", box=None, pad_edge=False)
    table.add_column("strategy")
    for name in ("predicted", "measured", "to the baseline", "rounds"):
        table.add_column(name, justify="right")
    tried = {trial.candidate.digest: trial for trial in found.trials}
    ordered = sorted(
        found.candidates,
        key=lambda each: (each.digest not in tried, _order(each.digest, found), each.engine_ns),
    )
    for each in ordered[: max(_SHOWN, len(tried))]:
        trial = tried.get(each.digest)
        measured = ("", "", "")
        if trial is not None:
            ratio = f"{trial.ratio:.3f}"
            measured = (ms_text(trial.iteration_ns), ratio, str(len(trial.ratios)))
        table.add_row(each.name, ms_text(each.engine_ns), *measured)
    return table


def _order(digest: str, found: Outcome) -> float:
    return next((t.ratio for t in found.trials if t.candidate.digest == digest), 0.0)


def resources(
    path: Annotated[Path, typer.Argument(help="A resource file, or a recorded run.")],
    out: Annotated[Path | None, typer.Option(help="A file to write.")] = None,
) -> int:
    """See RESOURCES_HELP."""
    if not path.exists():
        raise UserError(f"{path}: there is no such file or run")
    path = run_or_file(path)
    check_targets({"--out": out}, [path])
    found = read_resources(path)
    console = table_console()
    table = Table(box=None, pad_edge=False)
    for name in ("host", "roles", "up", "down", "cores", "devices"):
        table.add_column(name)
    for host in found.hosts:
        roles = [name for name, has in (("worker", host.workers), ("server", host.servers)) if has]
        table.add_row(
            host.name,
            ", ".join(roles),
            format_rate(host.up_bps),
            format_rate(host.down_bps),
            "" if host.cores is None else str(host.cores),
            str(host.devices),
        )
    console.print(table)
    if out is not None:
        write_resources(out, found)
        console.print(f"saved: {out}", soft_wrap=True)
    return 0
