"""The lanes of the page's timeline: what every role did in the last iterations.

    path        the critical path, in one lane
    worker      what it computes or waits for; updates; its link up and down, one partition at a
                time (``diagnose/links.py``); collectives
    server      sums, on as many lanes as there were at once

Times are whole numbers of ``UNIT_NS``, from the first shown iteration's begin. So many iterations
are shown that the page stays small.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from byteprophet.diagnose import Diagnosis
from byteprophet.diagnose.computing import NOTHING, Stretches, computing, updating
from byteprophet.diagnose.links import DIRECTIONS, carried
from byteprophet.diagnose.recorded import Ints, Worker
from byteprophet.timeline.lanes import disjoint_lanes
from byteprophet.timeline.tables import Kind

UNIT_NS = 100

MOST_SLICES = 40_000

_Slice = tuple[int, int, str, str, int]
"""Begin, end, kind, name, bytes."""


def timeline(diagnosis: Diagnosis, most: int = MOST_SLICES) -> dict[str, Any]:
    """Plain data: ``lanes`` have ``slices``, flat: begin, length, kind, name and bytes of each.

    Kinds and names are numbers of ``kinds`` and ``names``. ``iterations``: number, begin and end,
    of the worker whose critical path it is.
    """
    run = diagnosis.run
    lanes = [lane for lane in _lanes(diagnosis) if lane[2]]
    own = run.workers[diagnosis.path.worker]
    count = len(own.starts_ns)
    per_iteration = sum(len(slices) for _, _, slices in lanes) / count
    shown = max(1, min(count, int(most / max(1.0, per_iteration))))
    begin_ns = min(int(worker.starts_ns[-shown]) for worker in run.workers)
    end_ns = max(int(worker.ends_ns[-1]) for worker in run.workers)
    kinds, names = _Numbers(), _Numbers()
    made = []
    for role, label, slices in lanes:
        flat: list[int] = []
        for since_ns, until_ns, kind, name, size_bytes in slices:
            if since_ns < end_ns and until_ns > begin_ns:
                # A slice that reaches over the edge is cut there.
                since, until = (
                    (min(max(time_ns, begin_ns), end_ns) - begin_ns) // UNIT_NS
                    for time_ns in (since_ns, until_ns)
                )
                flat += since, until - since, kinds[kind], names[name], size_bytes
        made.append({"role": role, "label": label, "slices": flat})
    return {
        "unit_ns": UNIT_NS,
        "length": (end_ns - begin_ns) // UNIT_NS,
        "left_out": count - shown,
        "iterations": [
            [
                int(number),
                (int(since_ns) - begin_ns) // UNIT_NS,
                (int(until_ns) - begin_ns) // UNIT_NS,
            ]
            for number, since_ns, until_ns in zip(
                run.iterations[-shown:], own.starts_ns[-shown:], own.ends_ns[-shown:], strict=True
            )
        ],
        "kinds": kinds.texts,
        "names": names.texts,
        "lanes": made,
    }


def _lanes(diagnosis: Diagnosis) -> Iterable[tuple[str, str, Sequence[_Slice]]]:
    run = diagnosis.run
    steps = [
        (step.begin_ns, step.end_ns, step.kind, f"{step.name} {step.where}".strip(), 0)
        for step in diagnosis.path.steps
    ]
    yield "critical path", "", steps
    for index, worker in enumerate(run.workers):
        yield worker.role, "computes", _stretches(worker, computing(worker))
        yield worker.role, "updates", _stretches(worker, updating(worker))
        for direction, label in zip(DIRECTIONS, ("link up", "link down"), strict=True):
            link = carried(run, index, direction)
            keys = worker.transfers["key"][link.row].tolist()
            yield (
                worker.role,
                label,
                [
                    (begin_ns, end_ns, direction, f"{run.tensor(key)} [{key & 0xFFFF}]", size_bytes)
                    for begin_ns, end_ns, key, size_bytes in zip(
                        link.begin_ns.tolist(),
                        link.end_ns.tolist(),
                        keys,
                        link.size_bytes.tolist(),
                        strict=True,
                    )
                ],
            )
        rows = np.flatnonzero(worker.spans["kind"] == Kind.COLLECTIVE)
        yield from _spread(
            worker.role,
            "collectives",
            [_span(worker, row, "collective") for row in rows.tolist()],
        )
    for server in np.unique(run.server).tolist():
        own = run.served[run.server == server]
        passes = np.unique(own[["key", "size_bytes", "sum_begin_ns", "sum_end_ns"]])
        yield from _spread(
            f"server-{server}",
            "sums",
            [
                (begin_ns, end_ns, "sum", f"{run.tensor(key)} [{key & 0xFFFF}]", size_bytes)
                for key, size_bytes, begin_ns, end_ns in passes.tolist()
                if begin_ns > 0 and end_ns > 0
            ],
        )


def _stretches(worker: Worker, found: Stretches) -> list[_Slice]:
    columns = (found.begin_ns, found.end_ns, found.row, found.kind)
    return [
        (begin_ns, end_ns, *_span(worker, row, Kind(kind).name.lower())[2:])
        for begin_ns, end_ns, row, kind in zip(*(c.tolist() for c in columns), strict=True)
        if kind != NOTHING
    ]


def _span(worker: Worker, row: int, kind: str) -> _Slice:
    span = worker.spans[row]
    name = worker.names.get(int(span["name"]), "")
    return int(span["begin_ns"]), int(span["end_ns"]), kind, name, int(span["size_bytes"])


def _spread(
    role: str, label: str, slices: Sequence[_Slice]
) -> Iterable[tuple[str, str, Sequence[_Slice]]]:
    """Slices that may overlap, in any order, on as many lanes as keep them apart; each in order."""
    slices = sorted(slices)
    times: Ints = np.array([one[:2] for one in slices], np.int64).reshape(-1, 2)
    lanes = disjoint_lanes(times[:, 0], times[:, 1])
    for lane in np.unique(lanes).tolist():
        text = f"{label} {lane}" if lane else label
        yield role, text, [slices[place] for place in np.flatnonzero(lanes == lane).tolist()]


class _Numbers:
    """Texts by number, in the order in which they came."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def __getitem__(self, text: str) -> int:
        return self._known.setdefault(text, len(self._known))

    @property
    def texts(self) -> list[str]:
        return list(self._known)
