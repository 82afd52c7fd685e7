"""``byteprophet trace``: a profiled job once more, and what it would be with other links."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from byteprophet.cli.targets import check_chakra_targets, check_targets
from byteprophet.errors import UserError
from byteprophet.network import parse_rate
from byteprophet.report.console import facts_table, ms_text, shares_text, table_console
from byteprophet.simulate.clusters.description import Cluster, cluster_names, find_cluster
from byteprophet.timeline.span_list import valid_text
from byteprophet.traces.load import load_traces
from byteprophet.traces.perfetto import write_perfetto_replay
from byteprophet.traces.result import TraceReplay, replay_traces
from byteprophet.traces.retarget import Target, not_modelled, not_sized, retarget
from byteprophet.traces.write_chakra import write_chakra_traces

_HELP = """Replay a profiled job, and predict it with other links or other data parallelism.

Reads traces of torch.profiler, of one rank or of all, and MLCommons Chakra's (*.et). A folder
stands for the traces in it. Shows the recorded and the replayed time of each iteration, what it is
spent on, and the critical path. --out writes the replay for https://ui.perfetto.dev, --chakra as
Chakra's traces, NAME.<rank>.et.

--data-parallel, --bandwidth, --link-latency, --link-scale, --to-cluster and --compute-scale change
the job. Collectives are then scaled by the model of `byteprophet simulate`, for which --cluster
names the cluster on which the trace was recorded. Without it, only their bytes are scaled.

Example: byteprophet trace rank0.json.gz

Example: byteprophet trace traces/ --data-parallel 64 --cluster dgx-a100 --out replay.json.gz
"""
_NAMES = 60
"""Names of operations are cut to so many characters."""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("trace", help=_HELP)(trace)


def trace(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|FOLDER...", help="Traces of a job.", show_default=False),
    ],
    data_parallel: Annotated[
        int | None, typer.Option(help="Another number of data-parallel ranks.")
    ] = None,
    group: Annotated[
        str, typer.Option(help="The process group of data parallelism, if there are several.")
    ] = "",
    cluster: Annotated[
        str,
        typer.Option(help=f"Where it was recorded: {', '.join(cluster_names())}, or a file."),
    ] = "",
    to_cluster: Annotated[str, typer.Option(help="Another cluster with the same GPUs.")] = "",
    bandwidth: Annotated[
        str, typer.Option(help="Another rate of each network adapter, e.g. 400gbit.")
    ] = "",
    link_latency: Annotated[
        float | None, typer.Option(help="Another latency between nodes, in milliseconds.")
    ] = None,
    link_scale: Annotated[float, typer.Option(help="All links are so many times as fast.")] = 1.0,
    compute_scale: Annotated[
        float, typer.Option(help="All kernels take so many times as long.")
    ] = 1.0,
    pipeline: Annotated[
        int | None, typer.Option(help="Refused: a trace does not tell what a stage would be.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the replay for Perfetto.")] = None,
    chakra: Annotated[
        Path | None, typer.Option(help="Write the replay as Chakra's traces of this name.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """See _HELP."""
    if pipeline is not None:
        raise UserError(
            "--pipeline: a trace cannot be cut into other pipeline stages, because it does not "
            "name the layers of kernels: use byteprophet simulate with pp="
        )
    recorded_on, target_cluster = _clusters(cluster, to_cluster, bandwidth, link_latency)
    for name, value in (("--link-scale", link_scale), ("--compute-scale", compute_scale)):
        if not (math.isfinite(value) and 1e-6 <= value <= 1e6):
            raise UserError(f"{name} {value}: must be from 0.000001 to 1000000")
    if data_parallel is not None and not 1 <= data_parallel <= 1 << 20:
        raise UserError(f"--data-parallel {data_parallel}: must be from 1 to {1 << 20}")
    if group and data_parallel is None:
        raise UserError("--group: needs --data-parallel")
    target = Target(data_parallel, group, recorded_on, target_cluster, link_scale, compute_scale)
    traces = load_traces(sources)
    read = [one.path for one in traces]
    check_targets({"--out": out}, read)
    if chakra is not None:
        check_chakra_targets(chakra, read, {"--out": out})
    result = recorded = replay_traces(traces)
    if not target.is_as_recorded:
        matching = recorded.built.matching
        result = replay_traces(traces, retarget(traces, target, matching), matching=matching)
    written = []
    if out is not None:
        written.append(write_perfetto_replay(out, result).path)
    if chakra is not None:
        written += write_chakra_traces(chakra, result)
    kept, not_sized_ns = not_modelled(traces, target), not_sized(traces, target)
    if as_json:
        report = recorded.as_json()
        if result is not recorded:
            report["changed"] = {
                "replayed_ns": result.replayed_ns,
                "long_run_ns": result.long_run_ns,
                "use_of_time_ns": result.use_of_time(),
                "kept_ns": kept,
                "not_sized_ns": not_sized_ns,
            }
        report["written"] = [str(path) for path in written]
        typer.echo(json.dumps(report, indent=1))
        return 0
    _show(recorded, None if result is recorded else result)
    inferred_ns = sum(one.inferred_ns for one in traces) // len(traces)
    if inferred_ns:
        typer.echo(
            "Taken as computation, because it was launched before the trace and is not in it: "
            f"{ms_text(inferred_ns)}; profile with a warm-up step"
        )
    for kind, time_ns in kept.items():
        typer.echo(f"Kept as recorded, because there is no model of {kind}: {ms_text(time_ns)}")
    if not_sized_ns:
        typer.echo(f"Taken as large, because sizes are not recorded: {ms_text(not_sized_ns)}")
    if written:
        typer.echo(valid_text(f"written: {', '.join(map(str, written))}"))
    return 0


def _clusters(
    cluster: str, to_cluster: str, bandwidth: str, link_latency: float | None
) -> tuple[Cluster | None, Cluster | None]:
    """The cluster of the trace and the one in question; None: not stated, and the same."""
    changed = [
        name
        for name, given in (
            ("--to-cluster", to_cluster),
            ("--bandwidth", bandwidth),
            ("--link-latency", link_latency is not None),
        )
        if given
    ]
    if not cluster:
        if changed:
            raise UserError(f"{changed[0]}: needs --cluster, where the trace was recorded")
        return None, None
    recorded_on = find_cluster(cluster)
    if not changed:
        return recorded_on, None
    target = find_cluster(to_cluster) if to_cluster else recorded_on
    network = target.network
    if bandwidth:
        rate_bps = parse_rate(bandwidth, "--bandwidth")
        if rate_bps is None:
            raise UserError("--bandwidth: must be a rate")
        network = replace(network, adapter_bits_per_s=rate_bps)
    if link_latency is not None:
        if not (math.isfinite(link_latency) and 0 <= link_latency <= 1e6):
            raise UserError(f"--link-latency {link_latency}: must be from 0 to 1000000")
        network = replace(network, step_ns=round(link_latency * 1e6))
    return recorded_on, replace(target, network=network)


def _show(recorded: TraceReplay, changed: TraceReplay | None) -> None:
    console = table_console()
    traces = recorded.built.traces
    ranks = "1 rank" if len(traces) == 1 else f"{len(traces)} ranks"
    iterations = len(recorded.iterations)
    console.print(
        f"{ranks}, {iterations} iteration{'s' if iterations > 1 else ''}, "
        f"{sum(len(one.tasks) for one in traces):,} tasks"
    )
    if len(traces) > 1:
        console.print(f"{recorded.built.matched} collectives and messages of several ranks")
    if recorded.built.matching.ungrouped:
        console.print(
            f"{recorded.built.matching.ungrouped} of them are taken to be of all {len(traces)} "
            "ranks, because the traces name no process group: if there were several, the replay "
            "has ranks wait for others that they never met"
        )
    if recorded.built.unmatched:
        console.print(
            f"{recorded.built.unmatched} not matched, because ranks recorded different numbers or "
            "sizes of them in a step, or no name of the other rank, or are more than their group "
            "has: their times include waiting"
        )
    console.print()
    console.print(_times(recorded, changed))
    console.print()
    if iterations > 1 and changed is None:
        console.print(_iterations(recorded))
        console.print()
    uses, entries = (changed or recorded).critical_path()
    total_ns = max(1, sum(uses.values()))
    console.print("Critical path: " + shares_text({use: ns / total_ns for use, ns in uses.items()}))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right")
    table.add_column(justify="right")
    for use, name, time_ns, count in entries:
        table.add_row(f"{time_ns / total_ns:.1%}", f"{count} x", use, name[:_NAMES])
    console.print(table)


def _times(recorded: TraceReplay, changed: TraceReplay | None) -> Table:
    table = facts_table("An iteration")
    if recorded.measured_ns:
        table.add_row("recorded", ms_text(recorded.measured_ns), "")
    error = recorded.error
    table.add_row(
        "replayed", ms_text(recorded.replayed_ns), "" if error is None else f"{error:+.2%}"
    )
    result = recorded
    if changed is not None:
        result = changed
        ratio = changed.replayed_ns / max(1, recorded.replayed_ns) - 1
        table.add_row("with the changes", ms_text(changed.replayed_ns), f"{ratio:+.1%}")
    long_run_ns = result.long_run_ns
    if long_run_ns is None:
        said = "one iteration does not tell whether the host gets ahead of its GPU"
        table.add_row("in the long run", "not known", said)
    elif long_run_ns > 1.01 * result.replayed_ns:
        said = "until then, the host gets ahead of its GPU"
        table.add_row("in the long run", ms_text(long_run_ns), said)
    for use, time_ns in result.use_of_time().items():
        if time_ns:
            table.add_row(f"  {use}", ms_text(time_ns), "")
    traces = recorded.built.traces
    left_out_ns = sum(trace.unexplained_ns for trace in traces)
    left_out_ns //= len(traces) * len(recorded.iterations)
    if left_out_ns:
        table.add_row("left out", ms_text(left_out_ns), "waits of streams without a known reason")
    return table


def _iterations(result: TraceReplay) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("step")
    for name in ("recorded", "replayed", "error"):
        table.add_column(name, justify="right")
    for one in result.iterations:
        measured = ms_text(one.measured_ns) if one.measured_ns else ""
        error = f"{one.error:+.2%}" if one.measured_ns else ""
        table.add_row(str(one.number), measured, ms_text(one.replayed_ns), error)
    return table
