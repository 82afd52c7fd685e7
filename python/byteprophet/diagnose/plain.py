"""A diagnosis as plain data: ``byteprophet report --json`` and the page (docs/formats.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from operator import attrgetter
from typing import Any

import numpy as np

from byteprophet.diagnose.breakdown import PARTS
from byteprophet.diagnose.compare import Comparison
from byteprophet.diagnose.diagnosis import Diagnosis
from byteprophet.diagnose.links import DIRECTIONS
from byteprophet.diagnose.path import inside_ns
from byteprophet.diagnose.utilisation import Floats

SCHEMA = 1

_TOP = 15


def as_json(diagnosis: Diagnosis, against: Comparison | None, other: str = "") -> dict[str, Any]:
    """The diagnosis as JSON data; ``against``: its comparison with the run called ``other``."""
    run = diagnosis.run
    settled, settled_ns = diagnosis.settled()
    data = {
        "schema": SCHEMA,
        "run": diagnosis.directory.resolve().name,
        "facts": diagnosis.facts,
        "notes": list(run.notes),
        "lost": run.lost,
        "cut_off": list(run.cut_off),
        "workers": [worker.role for worker in run.workers],
        "iterations": run.iterations.tolist(),
        "iteration_ns": diagnosis.spread_ns(),
        "iterations_ns": run.iteration_ns.tolist(),
        "settled": {"iterations": settled, "median_ns": settled_ns},
        "bound_ns": diagnosis.bound_ns,
        "breakdown": _breakdown(diagnosis),
        "path": _path(diagnosis),
        "utilisation": _utilisation(diagnosis),
        "stragglers": _stragglers(diagnosis),
        "gradients": [[asdict(gradient) for gradient in own] for own in diagnosis.gradients],
        "prediction": diagnosis.prediction.as_json() if diagnosis.prediction else None,
        "not_predicted": diagnosis.not_predicted,
        "against": None if against is None else {"run": other, **asdict(against)},
    }
    plain: dict[str, Any] = nulls(data)
    return plain


def nulls(data: Any) -> Any:
    """``data`` with None in place of numbers that JSON does not have (not known)."""
    if isinstance(data, Mapping):
        return {name: nulls(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [nulls(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def whole(values: Floats) -> list[int | None]:
    """The values, rounded; None for values that are not known."""
    return [None if math.isnan(value) else round(value) for value in values.tolist()]


def _breakdown(diagnosis: Diagnosis) -> dict[str, Any]:
    found = diagnosis.breakdown
    mean_ns = found.parts_ns.mean(axis=1)
    waits = sorted(found.waits_ns.items(), key=lambda pair: -int(pair[1].sum()))
    return {
        "parts": list(PARTS),
        "mean_ns": np.rint(mean_ns).astype(np.int64).tolist(),
        "parts_ns": found.parts_ns.tolist(),
        "waits": [
            {"name": name, "mean_ns": round(float(times.mean()))} for name, times in waits[:_TOP]
        ],
    }


def _path(diagnosis: Diagnosis) -> dict[str, Any]:
    path, run = diagnosis.path, diagnosis.run
    total_ns = float((run.workers[path.worker].ends_ns - run.workers[path.worker].starts_ns).sum())
    times_ns = inside_ns(run, path).tolist()

    def rows(*fields: str) -> list[dict[str, Any]]:
        sums: dict[tuple[str, ...], int] = {}
        columns = (map(attrgetter(field), path.steps) for field in fields)
        for label, time_ns in zip(zip(*columns, strict=True), times_ns, strict=True):
            sums[label] = sums.get(label, 0) + time_ns
        return [
            {
                **dict(zip(fields, label, strict=True)),
                "mean_ns": round(sums[label] / len(run.iterations)),
                "share": sums[label] / total_ns,
            }
            for label in sorted(sums, key=lambda label: -sums[label])
        ]

    return {
        "worker": path.worker,
        "kinds": rows("kind"),
        "where": rows("where"),
        "names": rows("name")[:_TOP],
        "top": rows("kind", "name", "where")[:_TOP],
    }


def _utilisation(diagnosis: Diagnosis) -> dict[str, Any]:
    used = diagnosis.utilisation
    return {
        "mean": {one.name: one.share for one in diagnosis.mean_shares()},
        "link_bps": [rate or None for rate in used.link_bps.tolist()],
        **{
            f"{direction}_{name}_bps": whole(rates)
            for direction in DIRECTIONS
            for name, rates in (
                ("mean", used.mean_rate_bps(direction)),
                ("busy", used.busy_rate_bps(direction)),
            )
        },
    }


def _stragglers(diagnosis: Diagnosis) -> dict[str, Any]:
    found = diagnosis.stragglers
    return {
        "source": found.source,
        "meetings": found.meetings,
        "last": found.last.tolist(),
        "behind_ns": found.behind_ns.tolist(),
        "p90_ns": found.p90_ns.tolist(),
        "cost_ns": diagnosis.breakdown.blamed_ns.sum(axis=0).tolist(),
    }
