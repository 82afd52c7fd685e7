"""``byteprophet watch``: a job while it runs, as a page, in the terminal, and for Prometheus."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Annotated

import typer

from byteprophet.cli.given import refuse_given
from byteprophet.errors import Error, UserError, described, tell
from byteprophet.report.console import table_console
from byteprophet.watch.server import LiveServer
from byteprophet.watch.sources import PERIOD_S, Shared, is_address, source_of
from byteprophet.watch.terminal import settled, show
from byteprophet.watch.tokens import new_token, token_in

_HELP = """Watch a job while it runs, or look at one that has ended.

Serves a page on loopback, and prints its address, which contains a secret token: iterations beside
the lower bound and the prediction, bandwidth and windows of links, waits and stragglers, plans and
warnings. RUN is a run directory, or a directory of runs, of which the newest is taken. ADDRESS is
that of another viewer, e.g. through ssh -L; its token may be in a file.

Example: byteprophet watch runs

Example: byteprophet watch runs/20261121T224844Z-prophet --terminal

Example: byteprophet watch runs --metrics 9464 --token-file ~/.byteprophet-token
"""


_OF_A_VIEWER = ("terminal", "metrics", "token_file", "as_json")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("watch", help=_HELP)(watch)


def watch(
    context: typer.Context,
    run: Annotated[
        str, typer.Argument(metavar="RUN|ADDRESS", help="A run directory, or a viewer's address.")
    ] = "runs",
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Show it in the terminal; in a pipe, once.")
    ] = False,
    metrics: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=1, max=65535, help="Serve Prometheus' metrics, and the page, there."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A file with the token to use; it is made if there is none."
        ),
    ] = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Print the dashboard for Grafana, and end.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one state, and end.")] = False,
) -> int:
    """See _HELP."""
    if dashboard:
        refuse_given(context, _OF_A_VIEWER, "cannot be combined with --dashboard")
        from byteprophet.watch.page import grafana_dashboard

        print(grafana_dashboard())
        return 0
    if as_json:
        refuse_given(context, ("terminal", "metrics"), "cannot be combined with --json")
    if (
        token_file is not None
        and not is_address(run)
        and (as_json or (terminal and metrics is None))
    ):
        raise UserError("--token-file: nothing is served that would need a token; leave it out")
    # The viewer at an address has a token already.
    token = None if token_file is None else token_in(token_file, may_be_made=not is_address(run))
    source, name = source_of(run, token)
    shared = Shared(source)
    if as_json:
        print(json.dumps(settled(shared), indent=1))
        return 0
    if terminal and metrics is None:
        with contextlib.suppress(KeyboardInterrupt):
            show(shared, table_console())
        return 0
    shared.state()  # before anything is promised
    with LiveServer(shared, token or new_token(), _page, metrics or 0) as server:
        tell(f"watching {name} at {server.address}")
        if metrics is not None:
            tell(f"metrics: http://127.0.0.1:{server.port}/metrics, with the same token")
        with contextlib.suppress(KeyboardInterrupt):
            if terminal:
                show(shared, table_console())
            _wait(shared if metrics is not None else None)
    return 0


def _page() -> str:
    # Imported here, because the page of reports imports what reports are made with.
    from byteprophet.watch.page import live_page

    return live_page()


def _wait(shared: Shared | None) -> None:
    """Waits for Ctrl-C. Meanwhile looks at ``shared``, if given, so that counters go on."""
    told = ""
    while True:
        time.sleep(PERIOD_S)
        if shared is None:
            continue
        try:
            shared.state()
            told = ""
        except (Error, OSError) as error:  # e.g. too many open files, for a while
            if described(error) != told:  # once, not every second
                told = described(error)
                tell(f"warning: {told}")
