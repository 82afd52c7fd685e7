"""Runs one job of ranks behind limited links, each of which writes a result of its own."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from byteprophet.errors import JobFailed
from byteprophet.launcher import JobSpec, make_run_directory, run_job
from byteprophet.network import parse_rate
from byteprophet.observe import recording

_LONGEST_S = 600.0


def rank_results(
    command: Sequence[str],
    options: argparse.Namespace,
    label: str,
    pattern: str,
    directory: Path | None = None,
) -> list[dict[str, Any]]:
    """What the ranks of one job wrote, in files like ``pattern`` in their run directory.

    ``options``: ``ranks``, ``bandwidth``, and ``runs``, where ``label`` names the run. With a
    ``directory``, that is the run, and it is recorded. Raises JobFailed if a rank wrote nothing, or
    if ranks end with different parameters (``parameters_sum``).
    """
    told = {} if directory is None else {recording.VARIABLE: "1"}
    directory = directory or make_run_directory(options.runs, label)
    spec = JobSpec(
        command=tuple(command),
        run_directory=directory,
        workers=options.ranks,
        servers=0,
        bandwidth_bps=parse_rate(options.bandwidth, "--bandwidth"),
        namespaces=True,
        environment=told,
        timeout_s=_LONGEST_S,
    )
    run_job(spec, None).check()
    paths = sorted(directory.glob(pattern))
    ranks = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if len(ranks) != options.ranks:
        raise JobFailed(f"not every rank wrote a result: see {directory}/logs")
    if len({rank["parameters_sum"] for rank in ranks}) != 1:
        raise JobFailed(f"ranks end with different parameters: see {directory}")
    return ranks
