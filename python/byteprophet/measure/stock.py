"""Reconstructs the transfers of workers under "stock", which do not record them.

The sources are spans and the servers' rows. BytePS as shipped queues gradients in the order in
which backward makes them. Its optimizer declares all gradients one after the other, sorted by name.
So among the keys that occur in every iteration, the n-th tensor is the n-th name of the BACKWARD
spans. Its gradient was queued at the end of its span. A span that hands nothing over
(``size_bytes`` 0) belongs to a burst, whose gradients are complete together: its gradient was
queued at the end of the next span that hands something over. The sizes of both sources must agree.

The result is rows of transfers as a worker would have recorded them: ``sent_ns`` equals
``ready_ns``, ``acked_ns`` and ``pulled_ns`` are 0 (not known), and the priority gives the place in
forward order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.measure.tensors import check_extent, layer_of
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import (
    SERVED_TABLE,
    TRANSFER,
    TRANSFERS,
    Kind,
    Rows,
    tensor_of,
)

_Ints = npt.NDArray[np.int64]


def stock_transfers(recorded: Sequence[Events], spans: Sequence[Events]) -> list[Events]:
    """Tables of transfers, one per worker; ``spans``: the workers' spans, by rank."""
    served = [events for events in recorded if events.table is SERVED_TABLE]
    if not served:
        raise UserError("servers recorded nothing, and stock records no transfers at workers")
    tables = []
    for worker, own in enumerate(spans):
        rows = [_transfers_of(events, worker) for events in served]
        sent = np.sort(np.concatenate(rows), order="ready_ns")  # when they arrived, so far
        tables.append(_completed(own, sent))
    return tables


def _transfers_of(served: Events, worker: int) -> Rows:
    mine = served.rows[served.rows["worker"] == worker]
    rows = np.zeros(len(mine), TRANSFER)
    for name in ("key", "size_bytes"):
        rows[name] = mine[name]
    rows["ready_ns"] = mine["arrived_ns"]
    rows["server"] = served.origin.rank
    return rows


def _completed(spans: Events, rows: Rows) -> Events:
    """Gradients' rows with iterations, names, priorities and times, in order of arrival."""
    iterations = spans.rows[spans.rows["kind"] == Kind.ITERATION]
    begins_ns, ends_ns = np.sort(iterations["begin_ns"]), np.sort(iterations["end_ns"])
    if not len(begins_ns):
        return Events(TRANSFERS, spans.origin, rows, {})
    # Where a step waits for all answers, what arrives in an iteration was sent in it. This tells
    # gradients from parameters, of which each is sent once.
    place = np.searchsorted(begins_ns, rows["ready_ns"], "right") - 1
    inside = (place >= 0) & (rows["ready_ns"] < ends_ns[place])
    rows["iteration"] = np.where(inside, np.sort(iterations["iteration"])[place], 0)

    backward = np.sort(spans.rows[spans.rows["kind"] == Kind.BACKWARD], order="end_ns")
    names = sorted({spans.names[name] for name in backward["name"].tolist()})
    numbers = _gradients(rows, len(begins_ns))
    if len(names) != len(numbers):
        raise UserError(
            f"stock: servers summed {len(numbers)} tensors in every iteration, but spans have "
            f"{len(names)} gradients of rank {spans.origin.rank}"
        )
    rows = rows[np.isin(tensor_of(rows), numbers)]  # of all rounds, so that these can be counted
    tensors = np.searchsorted(numbers, tensor_of(rows))
    rows["iteration"] = _iterations(rows, tensors, spans, backward, names)
    rows["priority"] = -1 - _forward_places(spans, names)[tensors]
    known_iterations = np.unique(np.append(0, spans.rows["iteration"]))
    check_extent(len(known_iterations), len(names))
    ready_ns, handed_bytes = _ready(spans, backward, names, known_iterations)
    at = np.searchsorted(known_iterations, rows["iteration"]), tensors
    known = ready_ns[at] > 0  # otherwise, the time of arrival is the latest possible
    rows["ready_ns"][known] = np.minimum(ready_ns[at], rows["ready_ns"])[known]
    rows["sent_ns"] = rows["ready_ns"]
    sent_bytes = np.zeros(ready_ns.shape, np.int64)
    np.add.at(sent_bytes, at, rows["size_bytes"].astype(np.int64))
    _check_sizes(sent_bytes, ready_ns, handed_bytes, known_iterations)
    return Events(TRANSFERS, spans.origin, rows, dict(zip(numbers.tolist(), names, strict=True)))


def _gradients(rows: Rows, iterations: int) -> _Ints:
    """Numbers of the tensors in every iteration, which leaves out parameters broadcast once."""
    inside = rows[rows["iteration"] > 0]
    pairs = np.unique(np.stack([tensor_of(inside), inside["iteration"]]), axis=1)
    numbers, counts = np.unique(pairs[0].astype(np.int64), return_counts=True)
    # The last iterations may be missing if servers ended first.
    found: _Ints = numbers[counts > iterations // 2]
    return found


def _iterations(
    rows: Rows, tensors: _Ints, spans: Events, backward: Rows, names: Sequence[str]
) -> _Ints:
    """The iteration of each row: that of the last gradient of this name before it arrived.

    The next one of this name is made after the answer has come, even where a step waits for
    nothing. What arrives after the last recorded gradient and its own row belongs to none.
    """
    made_by = np.array([spans.names[index] for index in backward["name"].tolist()])
    found = np.zeros(len(rows), np.int64)
    for tensor, name in enumerate(names):
        made = backward[made_by == name]
        own = np.flatnonzero(tensors == tensor)
        place = np.searchsorted(made["end_ns"], rows["ready_ns"][own], "right") - 1
        found[own] = np.where(place >= 0, made["iteration"][place], 0)
    pairs = np.stack([rows["key"].astype(np.int64), found])
    _, first = np.unique(pairs, axis=1, return_index=True)  # rows are in order of arrival
    again = np.ones(len(rows), np.bool_)
    again[first] = False
    found[again] = 0
    return found


def _forward_places(spans: Events, names: Sequence[str]) -> _Ints:
    """Each name's place in forward order; within a layer, the last one in backward comes first."""
    layers: dict[str, int] = {}
    forward = spans.rows[spans.rows["kind"] == Kind.FORWARD]
    for index in np.sort(forward, order="begin_ns")["name"].tolist():
        layers.setdefault(spans.names[index], len(layers))
    backward = np.sort(spans.rows[spans.rows["kind"] == Kind.BACKWARD], order="end_ns")
    ended: dict[str, int] = {}
    for place, index in enumerate(backward["name"].tolist()):
        ended.setdefault(spans.names[index], place)
    order = sorted(names, key=lambda name: (layer_of(name, layers), -ended[name]))
    places = {name: place for place, name in enumerate(order)}
    return np.array([places[name] for name in names], np.int64)


def _ready(
    spans: Events, backward: Rows, names: Sequence[str], known_iterations: _Ints
) -> tuple[_Ints, _Ints]:
    """When gradients were handed over, and how many bytes with them.

    Two arrays of shape (iterations, tensors) for ``known_iterations``. When several gradients were
    handed over together, the bytes are at the last of them; 0 if a tensor handed nothing over.
    """
    shape = (len(known_iterations), len(names))
    row_of = {number: row for row, number in enumerate(known_iterations.tolist())}
    ready_ns, handed_bytes = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    number = {name: place for place, name in enumerate(names)}
    of_index = {index: number.get(name, -1) for index, name in spans.names.items()}
    waiting: list[tuple[int, int]] = []  # row, tensor
    columns = ("iteration", "name", "end_ns", "size_bytes")
    for iteration, name, end_ns, size_bytes in backward[list(columns)].tolist():
        row = row_of[iteration]
        if waiting and waiting[0][0] != row:
            waiting.clear()
        waiting.append((row, of_index[name]))
        if size_bytes:
            for at in waiting:
                ready_ns[at] = end_ns
            handed_bytes[waiting[-1]] = size_bytes
            waiting.clear()
    return ready_ns, handed_bytes


def _check_sizes(
    sent_bytes: _Ints, ready_ns: _Ints, handed_bytes: _Ints, known_iterations: _Ints
) -> None:
    """Check that what was ready at one time has the same size at the servers; whole iterations."""
    for row, iteration in enumerate(known_iterations.tolist()):
        if not iteration or not (sent_bytes[row].all() and ready_ns[row].all()):
            continue
        _, together = np.unique(ready_ns[row], return_inverse=True)
        at_servers = np.bincount(together, sent_bytes[row])
        if not np.array_equal(at_servers, np.bincount(together, handed_bytes[row])):
            raise UserError(
                f"stock: in iteration {iteration} servers summed other sizes than backward made: "
                "gradients cannot be told apart"
            )
