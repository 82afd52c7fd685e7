"""What the page draws over time: bandwidth and use, in bins; rates as they were sampled."""

from __future__ import annotations

from typing import Any

import numpy as np

from byteprophet.diagnose import Diagnosis
from byteprophet.errors import UserError
from byteprophet.network.samples import read_network


def series(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain data. ``push_bps``, ``pull_bps``, ``compute`` (W, B), ``sums`` (S, B), in bins.

    ``sampled``: by worker and direction, what the network monitor estimated: rows of time, from the
    first bin, and bits per second. ``not_sampled``: why there is nothing.
    """
    used = diagnosis.utilisation
    rates = {
        f"{direction}_bps": np.rint(used.link_bytes[direction] * 8e9 / used.bin_ns)
        .astype(np.int64)
        .tolist()
        for direction in used.link_bytes
    }
    sampled, not_sampled = _sampled(diagnosis)
    return {
        "bin_ns": used.bin_ns,
        "length_ns": used.end_ns - used.begin_ns,
        **rates,
        "compute": np.round(used.compute, 4).tolist(),
        "sums": np.round(used.sums, 4).tolist(),
        "starts_ns": (
            diagnosis.run.workers[diagnosis.path.worker].starts_ns - used.begin_ns
        ).tolist(),
        "sampled": sampled,
        "not_sampled": not_sampled,
    }


def _sampled(diagnosis: Diagnosis) -> tuple[dict[str, dict[str, list[list[int]]]], str]:
    try:
        workers = read_network(diagnosis.directory)
    except UserError:
        return {}, "The network monitor kept no samples"
    used = diagnosis.utilisation
    found: dict[str, dict[str, list[list[int]]]] = {}
    for worker in workers:
        own = [recorded for recorded in diagnosis.run.workers if recorded.rank == worker.rank]
        if not own:
            continue
        found[str(worker.rank)] = {
            direction: [
                [time_ns + own[0].ahead_ns - used.begin_ns, rate_bps]
                for time_ns, _, rate_bps in rows
            ]
            for direction, rows in worker.history.items()
        }
    return found, ""
