"""Writes a cluster's description as a TOML file, which ``load_cluster`` reads."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from byteprophet.simulate.clusters.beliefs import beliefs_as_tables
from byteprophet.simulate.clusters.description import PARTS, Cluster
from byteprophet.whole_files import write_whole


def write_cluster(path: Path, cluster: Cluster) -> None:
    """Write a description, with what is known of its constants, and the name of measured costs."""
    tables: dict[str, Any] = {"name": cluster.name}
    if cluster.costs:
        tables["costs"] = _seen_from(path.parent, cluster.costs)
    tables |= _described(cluster)
    if cluster.before_costs is not None:
        tables["before_costs"] = _described(cluster.before_costs)
    stated = beliefs_as_tables(cluster.beliefs)
    tables |= {key: value for key, value in stated.items() if value}
    write_whole(path, tomli_w.dumps(tables))


def _described(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """The tables of ``PARTS``. What is 0 or empty is optional."""
    return {
        part: {key: value for key, value in asdict(getattr(cluster, part)).items() if value}
        for part in PARTS
    }


def _seen_from(folder: Path, costs: str) -> str:
    """``costs``; a file by its path from ``folder``, where ``load_cluster`` looks for it."""
    if not Path(costs).is_file():
        return costs
    return os.path.relpath(Path(costs).resolve(), folder.resolve())
