"""``byteprophet profile``: what a job's first iterations told, and what urgent gradients waited."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from byteprophet.cli.runs import RUN_HELP, run_meant
from byteprophet.errors import NotWritten, UserError, warn
from byteprophet.network import parse_rate
from byteprophet.network.rate import PAYLOAD_SHARE
from byteprophet.profile import read_profile, waits
from byteprophet.profile.convert import to_workload
from byteprophet.profile.model import Profile, profile_path
from byteprophet.report.console import table_console
from byteprophet.report.profile import profile_tables
from byteprophet.timeline.read_events import load_rank
from byteprophet.timeline.tables import TRANSFERS
from byteprophet.whole_files import check_no_link
from byteprophet.workload import to_toml
from byteprophet.workload.run_config import read_run_config, server_limits_bps

_WARMUP = 5  # iterations in which a policy does not know the link yet

_HELP = """Show the profile of a run: sizes, ready times, bursts, forward and backward.

Prints tables and saves a picture of the stepwise pattern beside the profile. --toml prints it as a
workload file for byteprophet bench, which turns a real job into a paced one. --waits needs a run
with --record. It compares how long gradients waited that were the most urgent when they became
ready with (window + one partition) / bandwidth.

Example: byteprophet profile runs/20260101T120000Z-prophet --toml > mine.toml
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("profile", help=_HELP)(profile)


def profile(
    run: Annotated[Path, typer.Argument(help=RUN_HELP)],
    rank: Annotated[int, typer.Option(help="The worker process to show.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    toml: Annotated[bool, typer.Option("--toml", help="Print it as a workload file.")] = False,
    show_waits: Annotated[
        bool, typer.Option("--waits", help="Show how long urgent gradients waited.")
    ] = False,
    bandwidth: Annotated[
        str | None, typer.Option(help="With --waits: the link's rate, if the run has none.")
    ] = None,
) -> int:
    """See _HELP."""
    if toml and (as_json or show_waits):
        raise UserError("--toml: cannot be combined with --json or --waits")
    if bandwidth is not None and not show_waits:
        raise UserError("--bandwidth: needs --waits")
    run = run_meant(run)
    if show_waits:
        found = _waits(run, rank, bandwidth)
        typer.echo(json.dumps(found, indent=2) if as_json else _sentence(found))
        return 0
    path = profile_path(run, rank)
    if not path.is_file():
        raise UserError(
            f"{path}: there is no such file: the job had no policy, fewer than two iterations or "
            "workers, or BYTEPROPHET_PROFILING=0"
        )
    loaded = read_profile(path)
    if as_json:
        typer.echo(loaded.to_json(), nl=False)
    elif toml:
        typer.echo(to_toml(to_workload(loaded, run.absolute().name)), nl=False)
    else:
        console = table_console()
        console.print(profile_tables(loaded))
        _save_picture(loaded, path.with_suffix(".png"))
    return 0


def _save_picture(loaded: Profile, picture: Path) -> None:
    # Only here: matplotlib takes a second.
    from byteprophet.report.plot import save
    from byteprophet.report.profile_plot import draw_profile

    try:
        check_no_link(picture)
        save(draw_profile(loaded), picture)
    except NotWritten as error:  # e.g. somebody else's run: the tables are what was asked for
        warn(f"{error}; there is no picture")
    else:
        typer.echo(f"picture: {picture}", err=True)


def _link_bps(config: Mapping[str, Any], run: Path, rank: int, bandwidth: str | None) -> int:
    """The rate of the link of ``rank``; ``bandwidth``, if it is given."""
    if bandwidth is not None:
        given_bps = parse_rate(bandwidth, "--bandwidth")
        if given_bps is None:
            raise UserError(f"--bandwidth {bandwidth}: what a wait may be needs a limit")
        return given_bps
    if config["steps"]:
        raise UserError(f"{run}: its links changed while it ran: give --bandwidth")
    worker = str(rank // config["local_ranks"])
    rate_bps = config["worker_bandwidth_bps"].get(worker, config.get("bandwidth_bps"))
    if rate_bps is None:
        raise UserError(f"{run}: its links had no limit: give --bandwidth")
    return int(rate_bps)


def _waits(run: Path, rank: int, bandwidth: str | None) -> dict[str, Any]:
    """The 99th percentile of the waits, and what it may be."""
    config = read_run_config(run)
    if not config["servers"]:
        raise UserError(f"{run}: it had no servers, so nothing waited for them")
    recorded = load_rank(run, TRANSFERS, rank).rows
    recorded = recorded[recorded["iteration"] > _WARMUP]
    waits_ns = waits.urgent_waits_ns(recorded)
    found: dict[str, Any] = {
        "schema": 1,
        "scheduler": config["scheduler"],
        "partitions": len(recorded),
        "waits": len(waits_ns),
        "median_ns": int(np.median(waits_ns)) if len(waits_ns) else None,
        "p99_ns": int(np.percentile(waits_ns, 99)) if len(waits_ns) else None,
    }
    link_bps = _link_bps(config, run, rank, bandwidth) * PAYLOAD_SHARE
    settings = {"partition_bytes": config["partition_bytes"], **config["settings"]}
    window = waits.window_bytes(settings, recorded, link_bps)
    allowed = None
    if window is not None:
        limits_bps = [each / config["workers"] for each in server_limits_bps(config) if each]
        server_bps = min([link_bps / config["servers"], *limits_bps])
        allowed = int(waits.allowed_wait_ns(window, config["partition_bytes"], server_bps))
    return {**found, "window_bytes": window, "allowed_ns": allowed}


def _sentence(found: dict[str, Any]) -> str:
    if not found["waits"]:
        return f"{found['scheduler']}: no gradient became most urgent while others were in flight"
    allowed = (
        "the policy has no window"
        if found["allowed_ns"] is None
        else f"allowed (window {found['window_bytes']} bytes + one partition) / bandwidth = "
        f"{found['allowed_ns'] / 1e6:.2f} ms"
    )
    return (
        f"{found['scheduler']}: {found['waits']} new most urgent partitions of "
        f"{found['partitions']} waited {found['median_ns'] / 1e6:.2f} ms (median), "
        f"{found['p99_ns'] / 1e6:.2f} ms (99th percentile); {allowed}"
    )
