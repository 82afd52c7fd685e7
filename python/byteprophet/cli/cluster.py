"""``byteprophet cluster``: descriptions of clusters, for the simulator."""

from __future__ import annotations

import json
from dataclasses import fields
from math import isfinite
from typing import Annotated

import typer
from rich.table import Table

from byteprophet.cli.simulate_tables import GIB, constant_text
from byteprophet.report.console import facts_table, table_console
from byteprophet.simulate.clusters.beliefs import beliefs_as_tables
from byteprophet.simulate.clusters.constants import constants
from byteprophet.simulate.clusters.description import Cluster, cluster_names
from byteprophet.simulate.costs.sources import cluster_with_costs, measured_sources

_HELP = """Show descriptions of clusters, which byteprophet simulate uses.

Example: byteprophet cluster show dgx-a100
"""
_SHOW_HELP = f"""Show a cluster: its devices, links and topology, and all constants.

NAME is one of {", ".join(cluster_names())}, or the path of a TOML file. Each constant is printed
with its relative uncertainty (a standard deviation) and its source.

Example: byteprophet cluster show dgx-a100
"""


def register(app: typer.Typer) -> None:
    """Adds the command and its subcommands."""
    group = typer.Typer(help=_HELP, no_args_is_help=True, rich_markup_mode=None)
    group.callback()(lambda: None)
    group.command("show", help=_SHOW_HELP)(show)
    app.add_typer(group, name="cluster")


def show(
    name: Annotated[str, typer.Argument(help="A cluster's name, or the path of a description.")],
    costs: Annotated[
        str, typer.Option(help="Costs to show it with: aiconfigurator, or a table's path.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """See _SHOW_HELP."""
    cluster = cluster_with_costs(name, costs)
    console = table_console()
    if as_json:
        print(json.dumps(_as_json(cluster), indent=1))
        return 0
    console.print(_facts(cluster))
    console.print()
    console.print(_constants(cluster))
    return 0


def _facts(cluster: Cluster) -> Table:
    gpu, node, network = cluster.gpu, cluster.node, cluster.network
    table = facts_table(cluster.name)
    memory = f"{gpu.memory_bytes / GIB:.1f} GiB at {gpu.memory_bytes_per_s / 1e9:,.0f} GB/s"
    table.add_row("GPU", gpu.name, f"{gpu.flops_per_s / 1e12:,.0f} TFLOP/s, {memory}")
    links = f"{node.gpu_bytes_per_s / 1e9:,.0f} GB/s"
    table.add_row(
        "node", f"{node.gpus} GPUs", f"each sends {links} to the others, {_inside(cluster)}"
    )
    each = f"{network.adapters} x {network.adapter_bits_per_s / 1e9:,.0f} Gbit/s"
    own = f"{cluster.network_bytes_per_s / 1e9:,.1f} GB/s for each GPU"
    table.add_row("network", each, f"{_between(cluster)}; {own}")
    if switches := [name.replace("_", " ") for name, is_on in _switches(cluster).items() if is_on]:
        table.add_row("", "", ", ".join(switches))
    for source in measured_sources(cluster):
        table.add_row("costs", cluster.costs, source)
    return table


def _between(cluster: Cluster) -> str:
    network = cluster.network
    if not network.nodes_per_leaf:
        return "a fat tree without oversubscription" + (", with rails" if network.rails else "")
    leaves = "leaf switches, one for each GPU of a node," if network.rails else "a leaf switch"
    return (
        f"{leaves} for {network.nodes_per_leaf} nodes, whose links to the spine have "
        f"{network.uplink_share:.0%} of the rate of those to adapters"
    )


def _switches(cluster: Cluster) -> dict[str, bool]:
    """What its network does or does not, by the names in its description."""
    switches = (field.name for field in fields(cluster.network) if field.type == "bool")
    return {name: getattr(cluster.network, name) for name in switches}


def _inside(cluster: Cluster) -> str:
    links = cluster.node.links
    if not links:
        return "through a switch"
    pairs = ", ".join(
        f"{one}-{other}{f' x{count}' if count > 1 else ''}" for one, other, count in links
    )
    return f"over single NVLinks of {cluster.node.link_bytes_per_s / 1e9:.0f} GB/s: {pairs}"


def _constants(cluster: Cluster) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("constant")
    table.add_column("value", justify="right")
    table.add_column("source", overflow="fold")
    for one in constants(cluster):
        table.add_row(one.name, constant_text(one), one.source)
    return table


def _as_json(cluster: Cluster) -> dict[str, object]:
    return {
        "schema": 1,
        "name": cluster.name,
        "gpu": cluster.gpu.name,
        "costs": measured_sources(cluster),
        "network": _switches(cluster),
        "constants": {
            one.name: {**vars(one), "most": one.most if isfinite(one.most) else None}
            for one in constants(cluster)
        },
        "links": cluster.node.links,
        **beliefs_as_tables(cluster.beliefs),
    }
