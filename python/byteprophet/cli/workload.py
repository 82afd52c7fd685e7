"""``byteprophet workload``: look at a workload, or export it as a file to start from."""

from __future__ import annotations

from typing import Annotated

import typer

from byteprophet.workload import builtin_names, load, to_toml

_HELP = f"""Show a workload, or print it as a workload file.

Built in: {", ".join(builtin_names())}.
random:SEED is a workload made from that number, unlike any network.

Example: byteprophet workload random:7 --toml > unseen.toml
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("workload", help=_HELP)(workload)


def workload(
    name: Annotated[str, typer.Argument(help="A built-in name, random:SEED, or a workload file.")],
    toml: Annotated[bool, typer.Option("--toml", help="Print the whole file.")] = False,
) -> int:
    """See _HELP."""
    loaded = load(name)
    if toml:
        typer.echo(to_toml(loaded), nl=False)
        return 0
    typer.echo(
        f"{loaded.name}: {len(loaded.tensors)} tensors, {loaded.size_bytes // 4} parameters, "
        f"{loaded.size_bytes / 1e6:.1f} MB, batch {loaded.batch_size}, "
        f"forward {loaded.forward_ns / 1e6:.1f} ms, backward {loaded.backward_ns / 1e6:.1f} ms"
    )
    return 0
