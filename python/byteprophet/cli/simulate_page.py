"""Writes the page and the trace of a simulated job, for ``byteprophet simulate --out``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from byteprophet.cli.simulate_places import PAGE, TRACE
from byteprophet.report.page import Shown, write_simulation
from byteprophet.simulate.calibrate.interval import Interval
from byteprophet.simulate.execute.result import Simulated
from byteprophet.simulate.explain.critical_path import critical_path
from byteprophet.simulate.explain.lanes import lanes, last_part
from byteprophet.simulate.explain.operations import operations_of
from byteprophet.simulate.explain.plain import plain
from byteprophet.timeline.perfetto_lanes import write_lanes
from byteprophet.whole_files import make_directory

_MOST_IN_PAGE = 40_000
_MOST_IN_TRACE = 400_000


def write_out(
    directory: Path,
    result: Simulated,
    cluster: str,
    found: Interval,
    searched: Mapping[str, Any] | None = None,
) -> tuple[Path, Path]:
    """Write the page and the trace, and return their paths.

    Args:
        directory: is made if it is not there.
        result: the simulated job.
        cluster: the name of its cluster.
        found: the interval of its time.
        searched: of a search that led to it: what the page says.
    """
    make_directory(directory)
    operations = operations_of(result)
    path = critical_path(result, operations)
    all_lanes = lanes(result, operations, path)
    page, trace = directory / PAGE, directory / TRACE
    _, kept = last_part(all_lanes, result.iteration_ns, _MOST_IN_TRACE)
    write_lanes(trace, kept)
    begin_ns, kept = last_part(all_lanes, result.iteration_ns, _MOST_IN_PAGE)
    data = {**plain(result, operations, path, cluster), **found.as_json(), "trace": TRACE}
    if searched is not None:
        data["search"] = searched
    write_simulation(page, data, Shown(begin_ns, result.iteration_ns, kept))
    return page, trace
