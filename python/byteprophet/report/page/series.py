"""What the page draws over time: bandwidth, in bins; rates as they were sampled."""

from __future__ import annotations

from typing import Any

import numpy as np

from byteprophet.diagnose import Diagnosis
from byteprophet.diagnose.plain import whole
from byteprophet.errors import UserError
from byteprophet.monitor.samples import read_network

_MOST_MARKS = 200


def series(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain data. ``push_bps``, ``pull_bps``: (W, B) in bins; None for a worker without transfers.

    ``starts_ns``: of iterations; empty where there are too many to tell them apart. ``sampled``: by
    worker's place and direction, what the network monitor estimated: rows of time, from the first
    bin, and bits per second. ``not_sampled``: why there is nothing.
    """
    used = diagnosis.utilisation
    rates = {
        f"{direction}_bps": [
            None if np.isnan(row).any() else whole(row * 8e9 / used.widths_ns) for row in rows
        ]
        for direction, rows in used.link_bytes.items()
    }
    starts_ns = diagnosis.run.workers[diagnosis.path.worker].starts_ns - used.begin_ns
    sampled, not_sampled = _sampled(diagnosis)
    return {
        "bin_ns": used.bin_ns,
        "length_ns": used.end_ns - used.begin_ns,
        **rates,
        "starts_ns": starts_ns.tolist() if len(starts_ns) <= _MOST_MARKS else [],
        "sampled": sampled,
        "not_sampled": not_sampled,
    }


def _sampled(diagnosis: Diagnosis) -> tuple[dict[str, dict[str, list[list[int]]]], str]:
    try:
        workers = read_network(diagnosis.directory)
    except UserError:
        return {}, "The network monitor kept no samples"
    used = diagnosis.utilisation
    places = {worker.rank: place for place, worker in enumerate(diagnosis.run.workers)}
    found: dict[str, dict[str, list[list[int]]]] = {}
    for worker in workers:
        if worker.rank not in places:
            continue
        place = places[worker.rank]
        ahead_ns = diagnosis.run.workers[place].ahead_ns
        found[str(place)] = {
            direction: [
                [time_ns + ahead_ns - used.begin_ns, rate_bps] for time_ns, _, rate_bps in rows
            ]
            for direction, rows in worker.history.items()
        }
    return found, ""
