"""``byteprophet strategy``: make, show, compare, explain, change and run strategies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from byteprophet.cli import strategy_search
from byteprophet.cli.runs import RUN_HELP, run_meant, run_or_file
from byteprophet.cli.targets import check_targets
from byteprophet.errors import UserError, warn
from byteprophet.job import Job
from byteprophet.job.strategy import DDP, MIXED
from byteprophet.job.strategy_file import (
    Used,
    check_servers,
    read_strategy_file,
    strategy_path,
    write_strategy,
)
from byteprophet.launcher.checks import check_counts
from byteprophet.launcher.given_strategy import check_runtime
from byteprophet.measure.processor_file import measure_on_cores
from byteprophet.measure.run import Run
from byteprophet.measure.servers import Measured, measure_run
from byteprophet.optimize.compressing_costs import with_compressing_costs
from byteprophet.optimize.recorded import check_model_known, used_by
from byteprophet.replay.under import check_fits, checked_policy, under
from byteprophet.report.console import facts_table, ms_text, shares_text, table_console
from byteprophet.strategy.builders import BUILDERS, build
from byteprophet.strategy.compressed import compressed
from byteprophet.strategy.delayed import delayed
from byteprophet.strategy.explanation import Explanation, explain
from byteprophet.strategy.local import local
from byteprophet.strategy.mixed import why_useless
from byteprophet.strategy.resources import Resources, check_roles, on_resources, read_resources
from byteprophet.strategy.routed import routable, under_routes
from byteprophet.strategy.rules import with_rules
from byteprophet.strategy.ways import differences, facts, ways

_HELP = """Make, show, explain, compare, compress, check and run strategies (docs/strategies.md).

Example: byteprophet strategy make partitioned-ps runs/20261126T014735Z-prophet --out even.json
"""
_FILE = typer.Argument(metavar="FILE", help="A strategy file, or a run directory that has one.")
_RUN = typer.Argument(metavar="RUN", help=RUN_HELP)
_SERVERS_HELP = "How many servers a job that was recorded without is to have, for two transports."
_OTHER_HELP = "A run of the same job under the other transport, which tells what its messages cost."
_RULES_HELP = "PATTERN=TYPE,NAME=VALUE,...: a compressor and its settings for parameters."
_STALENESS_HELP = (
    "Delay the averages of this parameter, or of those that a pattern matches, by 1 or 2 steps "
    "(docs/staleness.md). May be given several times."
)
_COMPRESS_HELP = (
    "Let gradients travel compressed: PATTERN=TYPE,NAME=VALUE,... (docs/compression.md). May be "
    "given several times; of the rules that match a parameter, the first one counts."
)
_BUILDERS = "\n\n".join(f"{name}: {each.what}" for name, each in BUILDERS.items())
_MAKE_HELP = f"""Make a known strategy for a recorded job.

{_BUILDERS}

Example: byteprophet strategy make partitioned-ps runs/20261126T014735Z-prophet --out even.json

Example: byteprophet strategy make mixed runs/20261126T014735Z-dear --servers 2 --out mixed.json

Example: byteprophet strategy make shares runs/20261126T014735Z-dear --resources cluster.toml

Example: byteprophet strategy make dear-planned runs/RUN --staleness "*embedding*=1"

Example: byteprophet strategy make dear-planned runs/RUN --compress "*.weight=topk,k=0.01"

Example: byteprophet strategy make allreduce runs/RUN --local-sgd 8
"""


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(help=_HELP, no_args_is_help=True, rich_markup_mode=None)
    group.command("make", help=_MAKE_HELP)(make)
    for command in (show, explain_file, diff, check, compress):
        name = "explain" if command is explain_file else command.__name__
        group.command(name)(command)
    group.command(
        "run", context_settings={"allow_extra_args": True, "allow_interspersed_args": False}
    )(run)
    strategy_search.register(group)
    app.add_typer(group, name="strategy")


def make(
    builder: Annotated[str, typer.Argument(help="The kind of strategy.")],
    recorded: Annotated[Path, _RUN],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("strategy.json"),
    servers: Annotated[int | None, typer.Option(help=_SERVERS_HELP)] = None,
    other: Annotated[Path | None, typer.Option(metavar="RUN", help=_OTHER_HELP)] = None,
    resources: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Hosts and links to make it for: a file, or a run."),
    ] = None,
    staleness: Annotated[
        list[str] | None, typer.Option(metavar="NAME=STEPS", help=_STALENESS_HELP)
    ] = None,
    compress_rules: Annotated[
        list[str] | None, typer.Option("--compress", metavar="RULE", help=_COMPRESS_HELP)
    ] = None,
    local_sgd: Annotated[
        int | None,
        typer.Option(metavar="STEPS", help="Average parameters, after so many steps each time."),
    ] = None,
) -> int:
    """See _MAKE_HELP."""
    check_counts(servers=servers or 0)
    directory = run_meant(recorded)
    read = [path for path in (directory, resources, other) if path is not None]
    check_targets({"--out": out}, read)
    run = Run(directory)
    routes = builder in BUILDERS and BUILDERS[builder].adds_servers
    # Shared cores are not known with two transports, and not on other hosts (docs/replay.md).
    measured = _measured(run, is_wall_clock=routes or resources is not None)
    told = _told(other, routes)
    base, given = measured.job, None
    if resources is not None:
        given = read_resources(run_or_file(resources))
        check_roles(given)
        if routes and not given.servers:
            raise UserError(
                f"{resources}: no host takes a server, and {builder} needs one: add a [[host]] "
                "with servers = 1"
            )
        if servers not in (None, len(given.servers)):
            raise UserError(f"--servers {servers}: {resources} has {len(given.servers)}")
        base = on_resources(base, given)
    if routes:
        job = build(builder, _with_servers(run, base, servers, given, _job_of(told)))
    elif servers is not None and given is None:
        raise UserError(f"--servers {servers}: only a builder of two transports adds servers")
    else:
        job = build(builder, base)
    if base.strategy.staleness and not staleness:
        warn(f"{directory}: its averages are delayed, and those of {out} are not: --staleness")
    job = delayed(compressed(job, compress_rules or (), "--compress"), staleness or ())
    job = local(job, local_sgd)
    used = used_by(job, measured.job)
    if routes:
        used = replace(used, servers=job.servers)
        useless = why_useless(job)
        if useless:
            warn(f"{builder}: {useless}")
    found = explain(measured, job, told)
    write_strategy(out, replace(used, predicted=found.predicted))
    console = table_console()
    console.print(_explained(job.title, found))
    console.print(f"saved: {out}", soft_wrap=True)
    return 0


def _with_servers(
    run: Run, job: Job, servers: int | None, given: Resources | None, other: Job | None
) -> Job:
    """``job`` of ``run``, gradient by gradient, with the servers of ``given``, or ``servers``.

    ``other``: the same job under the other transport, which tells what its messages cost.
    """
    if given is None:
        return routable(run, job, servers, other)
    routed = routable(run, job, len(given.servers), other)
    links = tuple(host.link for host in given.servers)
    return replace(routed, cluster=replace(routed.cluster, servers=links))


def show(file: Annotated[Path, _FILE]) -> int:
    """Show how each parameter becomes the same on all ranks.

    Example: byteprophet strategy show optimized/20261126T014735Z-dear/strategy.json
    """
    used = _read(file)
    console = table_console()
    console.print(f"{file}: digest {used.digest}", soft_wrap=True)
    table = facts_table("")
    for name, text in facts(used).items():
        table.add_row(name, "", text)
    console.print(table)
    each = Table(box=None, pad_edge=False)
    for name, justify in (("parameter", "left"), ("bytes", "right"), ("way", "left")):
        each.add_column(name, justify=justify)  # type: ignore[arg-type]
    sizes = used.model.sizes_bytes
    for (name, way), size_bytes in zip(ways(used).items(), sizes, strict=True):
        each.add_row(name, str(size_bytes), way)
    console.print(each)
    return 0


def explain_file(
    file: Annotated[Path, _FILE],
    recorded: Annotated[Path, _RUN],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    other: Annotated[Path | None, typer.Option(metavar="RUN", help=_OTHER_HELP)] = None,
    servers: Annotated[int | None, typer.Option(help=_SERVERS_HELP)] = None,
) -> int:
    """Predict a recorded job under a strategy: its time, its bound, each link's load, what limits.

    Example: byteprophet strategy explain even.json runs/20261126T014735Z-prophet
    """
    check_counts(servers=servers or 0)
    used, run = _read(file), Run(run_meant(recorded))
    routed = used.strategy.runtime == MIXED
    if servers is not None and not routed:
        raise UserError(f"--servers {servers}: only a strategy of two transports adds servers")
    measured, told = _measured(run, is_wall_clock=routed), _told(other, routed)
    if routed:
        job = under_routes(run, measured.job, used, str(file), _job_of(told), servers)
        found = explain(measured, job, told)
    else:
        job = with_compressing_costs(under(measured.job, used, str(file)))
        found = explain(measured, job, told)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
    else:
        table_console().print(_explained(job.title, found))
    return 0


def compress(
    file: Annotated[Path, _FILE],
    rules: Annotated[list[str], typer.Argument(metavar="RULE...", help=_RULES_HELP)],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("compressed.json"),
) -> int:
    """Let gradients travel compressed (docs/compression.md).

    Of the rules that match a parameter, the first one counts.

    Example: byteprophet strategy compress runs/20261126T014735Z-dear "*.weight=topk,k=0.01"
    """
    check_targets({"--out": out}, [file, _file(file)])
    used = with_rules(replace(_read(file), since=0, predicted=None), rules, str(file))
    write_strategy(out, used)
    console = table_console()
    console.print(f"{facts(used)['compressors']} compressed")
    console.print(f"saved: {out}", soft_wrap=True)
    return 0


def diff(
    first: Annotated[Path, typer.Argument(help="A strategy file, or a run directory.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
) -> int:
    """Show what differs between two strategies. The exit status is 1 if anything does.

    Example: byteprophet strategy diff runs/20261126T014735Z-dear optimized/strategy.json
    """
    found = differences(_read(first), _read(second))
    console = table_console()
    if not found:
        console.print("They are equal.")
        return 0
    table = Table(box=None, pad_edge=False)
    for name in ("", str(first), str(second)):
        table.add_column(name, overflow="fold")
    for each in found:
        table.add_row(each.what, each.first, each.second)
    console.print(table)
    return 1


def check(
    file: Annotated[Path, _FILE],
    recorded: Annotated[
        Path | None, typer.Option("--run", metavar="RUN", help="A recorded run that it must fit.")
    ] = None,
    servers: Annotated[
        int | None, typer.Option(help="How many servers the job is going to have.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="How many workers the job is going to have.")
    ] = None,
) -> int:
    """Check a strategy: that it is whole, and fits a recorded job or a cluster.

    Example: byteprophet strategy check even.json --servers 2
    """
    check_counts(workers or 0, servers or 0)
    if servers is not None and servers < 0:
        raise UserError(f"--servers {servers}: must be at least 0")
    if workers is not None and workers < 1:
        raise UserError(f"--workers {workers}: must be at least 1")
    used = _read(file)
    check_runtime(str(file), used)
    _check_whole(file, used)
    unseen = _check_regions(file, used)
    owners = used.strategy.owners
    if servers is not None:
        if used.policy is None and servers:
            raise UserError(f"--servers {servers}: {file} is for a job without servers")
        if used.policy is not None:
            if not servers:
                raise UserError(f"--servers 0: {file} is for a job with servers")
            check_servers(str(file), used.strategy, servers)
    if workers is not None and owners and len(owners) != workers:
        raise UserError(f"{file}: it has owners' weights for {len(owners)} ranks, not {workers}")
    if recorded is not None:
        _check_recorded(Run(run_meant(recorded)), used, str(file), servers)
    fits = "" if recorded is None else f"; it fits {recorded}"
    table_console().print(
        f"{file}: digest {used.digest}, {len(used.model)} parameters{fits}", soft_wrap=True
    )
    if unseen:
        named = ", ".join(unseen)
        table_console().print(
            f"not checked: whether the model has these modules, which hold no parameters: {named}",
            soft_wrap=True,
        )
    return 0


def _check_regions(file: Path, used: Used) -> list[str]:
    """Raise ``UserError`` if the model cannot have some module of a region.

    Parameters' names tell which modules hold some. Returns the others that may be there.
    """
    names = set(used.model.names)
    parts = [name.split(".") for name in names]
    holding = {".".join(each[:length]) for each in parts for length in range(len(each))}
    modules = [path for region in used.strategy.regions for path in region.modules]
    unseen = [path for path in modules if path not in holding]
    for path in unseen:
        if path in names or path.rpartition(".")[0] not in holding:
            raise UserError(f"{file}: regions: its model has no module {path!r}")
    return unseen


def _check_whole(file: Path, used: Used) -> None:
    """Raise ``UserError`` if every job would refuse the strategy.

    Nothing exchanges some parameter, or servers cannot be started as it says.
    """
    strategy = used.strategy
    if used.policy is not None:  # servers have the rest, or routes are checked
        checked_policy(str(file), used)
        if used.servers:
            check_servers(str(file), strategy, used.servers)
        return
    held = {name for bucket in strategy.buckets for name in bucket.parameters}
    held |= strategy.compressor_of.keys()
    missing = [name for name in used.model.names if name not in held]
    if missing and strategy.runtime != DDP:  # which does not exchange frozen parameters
        raise UserError(f"{file}: parameter {missing[0]!r} is in no bucket")


def _check_recorded(run: Run, used: Used, path: str, servers: int | None) -> None:
    """Raise ``UserError`` if the job of ``run`` could not run under ``used``, predictable or not.

    A strategy may move a job to servers, or away from them: its parameters are then compared one
    by one. ``servers``: how many there are to be if the file does not say it.
    """
    job = measure_run(run).job
    served = used.policy is not None
    if used.strategy.runtime == MIXED or served != (job.servers > 0):
        job = routable(run, job, None if job.servers else used.servers or servers)
    check_fits(path, used, job)


def run(context: typer.Context, file: Annotated[Path, _FILE]) -> int:
    """Run a job under a strategy: byteprophet run --strategy FILE, with the same options.

    Example: byteprophet strategy run even.json --workers 2 --servers 2 -- python train.py
    """
    from byteprophet.cli.main import run_cli

    return run_cli(["run", "--strategy", str(_file(file)), *context.args])


def _measured(run: Run, *, is_wall_clock: bool) -> Measured:
    """The job of ``run``, as ``byteprophet replay`` measures it unless by the wall clock alone."""
    measured = measure_run(run) if is_wall_clock else measure_on_cores(run)
    check_model_known(run, measured.job)
    return measured


def _told(other: Path | None, routed: bool) -> Measured | None:
    """What ``--other`` measured."""
    if other is None:
        return None
    if not routed:
        raise UserError(f"--other {other}: only a strategy of two transports needs it")
    return measure_run(Run(run_meant(other)))


def _job_of(told: Measured | None) -> Job | None:
    return None if told is None else told.job


def _file(path: Path) -> Path:
    return strategy_path(path) if path.is_dir() else path


def _read(path: Path) -> Used:
    file = _file(path)
    if not file.exists():
        raise UserError(f"{file}: there is no such file")
    return read_strategy_file(file)


def _explained(title: str, found: Explanation) -> Table:
    table = facts_table(f"{title}: an iteration")
    low_ns, high_ns = found.predicted.interval_ns
    interval = f"{ms_text(low_ns)} to {ms_text(high_ns)}"
    unsure = f"error of the recorded job's replay {found.replay_error:+.1%}"
    if found.assumed:
        unsure += f"; what messages cost over {found.assumed} was not recorded"
    base_ns = found.predicted.iteration_ns
    table.add_row("predicted", ms_text(base_ns), f"{interval}; {unsure}")
    gap = f"{found.predicted.gap:.1%} below what is predicted"
    table.add_row("bound", ms_text(found.bound_ns), gap)
    table.add_row("computation", ms_text(found.compute_ns), "of the slowest worker")
    for load in found.loads:
        share = f"{load.busy_ns / base_ns:.0%} of the time" if load.busy_ns else ""
        busy = ms_text(load.busy_ns) if load.busy_ns else "no limit"
        table.add_row(load.link, busy, f"{load.size_bytes / 1e6:.1f} MB  {share}")
    table.add_row("limit", "", found.limit)
    if found.path:
        table.add_row("critical path", "", shares_text(found.path))
    return table
