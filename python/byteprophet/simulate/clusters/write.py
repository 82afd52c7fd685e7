"""Writes a cluster's description as a TOML file, which ``load_cluster`` reads."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from byteprophet.simulate.clusters.beliefs import beliefs_as_tables
from byteprophet.simulate.clusters.description import PARTS, Cluster
from byteprophet.whole_files import write_whole


def write_cluster(path: Path, cluster: Cluster) -> None:
    """Write a description, with what is known of its constants."""
    tables: dict[str, Any] = {"name": cluster.name}
    for part in PARTS:
        described = asdict(getattr(cluster, part))
        # Those that are 0 or empty are optional.
        tables[part] = {key: value for key, value in described.items() if value}
    stated = beliefs_as_tables(cluster.beliefs)
    tables |= {key: value for key, value in stated.items() if value}
    write_whole(path, tomli_w.dumps(tables))
