"""The lanes of the page's timeline: what every role did in the last iterations.

    path        the critical path, in one lane
    worker      what it computes or waits for; updates; its link up and down, one partition at a
                time (``diagnose/links.py``); collectives
    server      sums, on as many lanes as there were at once

Times are whole numbers of ``UNIT_NS``, from the first shown iteration's begin. As many
iterations are shown as keep the page small, and at least one. Browsers draw no picture that is
higher than 32,767 pixels, so roles are left out that have no room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from byteprophet.diagnose import Diagnosis
from byteprophet.diagnose.computing import NOTHING, computing, updating
from byteprophet.diagnose.links import DIRECTIONS, carried
from byteprophet.diagnose.recorded import Ints, Recorded, Worker
from byteprophet.order_statistics import distinct
from byteprophet.timeline.lanes import disjoint_lanes
from byteprophet.timeline.tables import Kind, Rows

UNIT_NS = 100

MOST_SLICES = 40_000
_MOST_LANES = 400
"""Of 19 points each, and a point may be four pixels."""


class Slices(NamedTuple):
    """What one lane shows, shape (n,) each. ``kind``, ``name``: numbers of texts (``Numbers``)."""

    begin_ns: Ints
    end_ns: Ints
    kind: Ints
    name: Ints
    size_bytes: Ints

    def at(self, which: Any) -> Slices:
        """Some of them: as an array is indexed."""
        return Slices(*(column[which] for column in self))


class Numbers:
    """Texts by number, in the order in which they came."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self.texts: list[str] = []

    def of(self, text: str) -> int:
        """The number of a text."""
        if text not in self._known:
            self._known[text] = len(self.texts)
            self.texts.append(text)
        return self._known[text]

    def of_all(self, texts: Sequence[str]) -> Ints:
        """Of each text."""
        return np.array([self.of(text) for text in texts], np.int64)


Lane = tuple[str, str, Slices]
"""Role, label, slices."""


def timeline(
    diagnosis: Diagnosis, most: int = MOST_SLICES, most_lanes: int = _MOST_LANES
) -> dict[str, Any]:
    """Plain data: ``lanes`` have ``slices``, flat: gap, length, kind, name and bytes of each.

    The gap is from the end of the slice before, of the first from 0: small numbers make a small
    page. Kinds and names are numbers of ``kinds`` and ``names``. ``iterations``: number, begin and
    end, of the worker whose critical path it is. ``left_out``, ``roles_left_out``: how many earlier
    iterations and last roles are not shown.
    """
    run = diagnosis.run
    kinds, names = Numbers(), Numbers()
    known = [lane for lane in _lanes(diagnosis, kinds, names) if len(lane[2].kind)]
    lanes = _of_first_roles(known, most_lanes)
    own = run.workers[diagnosis.path.worker]
    count = len(own.starts_ns)
    begins_ns = np.min([worker.starts_ns for worker in run.workers], axis=0)
    end_ns = max(int(worker.ends_ns[-1]) for worker in run.workers)
    shown = _iterations_of(most, lanes, begins_ns, end_ns)
    begin_ns = int(begins_ns[-shown])
    lanes = [(role, label, _within(slices, begin_ns, end_ns)) for role, label, slices in lanes]
    return {
        **drawn(lanes, kinds, names, begin_ns, end_ns),
        "left_out": count - shown,
        "roles_left_out": len({role for role, _, _ in known} - {role for role, _, _ in lanes}),
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
    }


def _of_first_roles(lanes: Sequence[Lane], most: int) -> list[Lane]:
    """The lanes of the first roles that have ``most`` together, and of two roles at least."""
    counts = Counter(role for role, _, _ in lanes)
    sums = dict(zip(counts, accumulate(counts.values()), strict=True))
    kept = {role for place, (role, count) in enumerate(sums.items()) if place < 2 or count <= most}
    return [lane for lane in lanes if lane[0] in kept]


def _iterations_of(most: int, lanes: Sequence[Lane], begins_ns: Ints, end_ns: int) -> int:
    """How many of the last iterations, at least one, have ``most`` slices or fewer.

    ``begins_ns``: of all iterations; ``end_ns``: of the last.
    """
    seen = [slices.end_ns[slices.begin_ns < end_ns] for _, _, slices in lanes]
    ends_ns = np.sort(np.concatenate([np.zeros(0, np.int64), *seen]))
    counts = len(ends_ns) - np.searchsorted(ends_ns, begins_ns, "right")
    return max(1, int((counts <= most).sum()))


def drawn(
    lanes: Sequence[Lane], kinds: Numbers, names: Numbers, begin_ns: int, end_ns: int
) -> dict[str, Any]:
    """The lanes between two moments as plain data, with the texts that they use."""
    kind_texts = _renumber([slices.kind for _, _, slices in lanes], kinds.texts)
    name_texts = _renumber([slices.name for _, _, slices in lanes], names.texts)
    return {
        "unit_ns": UNIT_NS,
        "length": (end_ns - begin_ns) // UNIT_NS,
        "kinds": kind_texts,
        "names": name_texts,
        "lanes": [
            {"role": role, "label": label, "slices": _flat(slices, begin_ns)}
            for role, label, slices in lanes
        ],
    }


def _within(slices: Slices, begin_ns: int, end_ns: int) -> Slices:
    """What is seen from ``begin_ns`` to ``end_ns``. A slice that reaches over the edge is cut."""
    seen = slices.at((slices.begin_ns < end_ns) & (slices.end_ns > begin_ns))
    return seen._replace(
        begin_ns=np.maximum(seen.begin_ns, begin_ns), end_ns=np.minimum(seen.end_ns, end_ns)
    )


def _renumber(columns: Sequence[Ints], texts: Sequence[str]) -> list[str]:
    """Number, in place, what ``columns`` use of ``texts`` in the order in which it comes there."""
    numbers = dict.fromkeys(np.concatenate([np.zeros(0, np.int64), *columns]).tolist())
    new = np.zeros(len(texts), np.int64)
    new[list(numbers)] = np.arange(len(numbers))
    for column in columns:
        column[:] = new[column]
    return [texts[number] for number in numbers]


def _flat(slices: Slices, begin_ns: int) -> list[int]:
    since = (slices.begin_ns - begin_ns) // UNIT_NS
    until = (slices.end_ns - begin_ns) // UNIT_NS
    gap = since - np.append(0, until)[: len(since)]
    columns = gap, until - since, slices.kind, slices.name, slices.size_bytes
    flat: list[int] = np.stack(columns, axis=1).reshape(-1).tolist()
    return flat


def _lanes(diagnosis: Diagnosis, kinds: Numbers, names: Numbers) -> Iterable[Lane]:
    run = diagnosis.run
    steps = diagnosis.path.steps
    yield (
        "critical path",
        "",
        Slices(
            np.array([step.begin_ns for step in steps], np.int64),
            np.array([step.end_ns for step in steps], np.int64),
            kinds.of_all([step.kind for step in steps]),
            names.of_all([f"{step.name} {step.where}".strip() for step in steps]),
            np.zeros(len(steps), np.int64),
        ),
    )
    for index, worker in enumerate(run.workers):
        for label, found in (("computes", computing(worker)), ("updates", updating(worker))):
            kept = found.kind != NOTHING
            spans = worker.spans[found.row[kept]]
            kind, name = _called(worker, spans, kinds, names)
            times_ns = found.begin_ns[kept], found.end_ns[kept]
            yield worker.role, label, Slices(*times_ns, kind, name, _sizes(spans))
        for direction, label in zip(DIRECTIONS, ("link up", "link down"), strict=True):
            link = carried(run, index, direction)
            kind = np.full(len(link.row), kinds.of(direction))
            name = _partitions(run, worker.transfers["key"][link.row], names)
            slices = Slices(link.begin_ns, link.end_ns, kind, name, link.size_bytes)
            yield worker.role, label, slices
        spans = worker.spans[worker.spans["kind"] == Kind.COLLECTIVE]
        kind, name = _called(worker, spans, kinds, names)
        slices = Slices(spans["begin_ns"], spans["end_ns"], kind, name, _sizes(spans))
        yield from _spread(worker.role, "collectives", slices, names)
    for server in distinct(run.server).tolist():
        own = run.served[run.server == server]
        sums = distinct(own[["key", "size_bytes", "sum_begin_ns", "sum_end_ns"]])
        sums = sums[(sums["sum_begin_ns"] > 0) & (sums["sum_end_ns"] > 0)]
        kind, name = np.full(len(sums), kinds.of("sum")), _partitions(run, sums["key"], names)
        slices = Slices(sums["sum_begin_ns"], sums["sum_end_ns"], kind, name, _sizes(sums))
        yield from _spread(f"server-{server}", "sums", slices, names)


def _called(worker: Worker, spans: Rows, kinds: Numbers, names: Numbers) -> tuple[Ints, Ints]:
    """Kind and name of each of the worker's ``spans``."""
    kind_of = np.array([kinds.of(kind.name.lower()) for kind in Kind])
    name = _each(spans["name"], lambda number: names.of(worker.names.get(number, "")))
    return kind_of[spans["kind"]], name


def _partitions(run: Recorded, keys: npt.NDArray[np.uint64], names: Numbers) -> Ints:
    """The name of each partition."""
    return _each(keys, lambda key: names.of(f"{run.tensor(key)} [{key & 0xFFFF}]"))


def _each(values: npt.NDArray[np.unsignedinteger[Any]], number: Callable[[int], int]) -> Ints:
    """``number`` of each value, asked once for those that are equal."""
    listed = values.tolist()
    known = {value: number(value) for value in set(listed)}
    return np.array([known[value] for value in listed], np.int64)


def _sizes(rows: Rows) -> Ints:
    sizes: Ints = rows["size_bytes"].astype(np.int64)
    return sizes


def _spread(role: str, label: str, slices: Slices, names: Numbers) -> Iterable[Lane]:
    """Slices that may overlap, in any order, on as many lanes as keep them apart; each in order."""
    by_text = np.argsort(np.argsort(names.texts, kind="stable"))[slices.name]
    slices = slices.at(np.lexsort((slices.size_bytes, by_text, slices.end_ns, slices.begin_ns)))
    lanes = disjoint_lanes(slices.begin_ns, slices.end_ns)
    for lane in distinct(lanes).tolist():
        yield role, f"{label} {lane}" if lane else label, slices.at(lanes == lane)
