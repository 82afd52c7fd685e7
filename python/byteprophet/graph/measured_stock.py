"""What workers under "stock" sent, which they do not record: from spans and the servers' rows.

BytePS as shipped hands a gradient to its queue when backward has made it, in the order of arrival,
and its optimizer declares all gradients one after the other, sorted by name. So among the keys that
every iteration has, the n-th tensor is the n-th name of the BACKWARD spans, and was offered at the
end of its span; of spans that hand nothing over (``size_bytes`` 0), at that of the next one that
does, as gradients of a burst are complete together. Sizes must agree, which is checked.

What comes out are rows of transfers, so that all else need not know: ``sent_ns`` is ``ready_ns``,
``acked_ns`` and ``pulled_ns`` are not known (0), and the priority says the place in forward order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.graph.measured_tensors import layer_of
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
    """Tables of transfers, one per worker; ``spans``: the workers', by rank."""
    served = [events for events in recorded if events.table is SERVED_TABLE]
    if not served:
        raise UserError("has no rows of servers, and stock records no transfers at workers")
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
    """The rows of gradients, with iterations, names, priorities and times; in order of arrival."""
    iterations = spans.rows[spans.rows["kind"] == Kind.ITERATION]
    begins_ns, ends_ns = np.sort(iterations["begin_ns"]), np.sort(iterations["end_ns"])
    if not len(begins_ns):
        return Events(TRANSFERS, spans.origin, rows, {})
    # A step waits for all answers: what arrives in an iteration was sent in it.
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
    rows["priority"] = -1 - _forward_places(spans, names)[tensors]
    ready_ns, handed_bytes = _ready(spans, backward, names)
    at = rows["iteration"], tensors
    known = ready_ns[at] > 0  # else it was ready when it arrived, at the latest
    rows["ready_ns"][known] = np.minimum(ready_ns[at], rows["ready_ns"])[known]
    rows["sent_ns"] = rows["ready_ns"]
    _check_sizes(rows, ready_ns, handed_bytes, tensors)
    return Events(TRANSFERS, spans.origin, rows, dict(zip(numbers.tolist(), names, strict=True)))


def _gradients(rows: Rows, iterations: int) -> _Ints:
    """Numbers of the tensors that every iteration has; parameters are broadcast once."""
    inside = rows[rows["iteration"] > 0]
    pairs = np.unique(np.stack([tensor_of(inside), inside["iteration"]]), axis=1)
    numbers, counts = np.unique(pairs[0].astype(np.int64), return_counts=True)
    # The last iterations may be missing where servers were ended first.
    found: _Ints = numbers[counts > iterations // 2]
    return found


def _forward_places(spans: Events, names: Sequence[str]) -> _Ints:
    """The place of each name in forward order; within a layer, the last in backward first."""
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


def _ready(spans: Events, backward: Rows, names: Sequence[str]) -> tuple[_Ints, _Ints]:
    """When gradients were handed over, and how many bytes with them.

    Both of shape (last iteration + 1, tensors), the bytes at the tensor that was handed over last
    of those that came together; 0 where there was none.
    """
    shape = (int(spans.rows["iteration"].max()) + 1, len(names))
    ready_ns, handed_bytes = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    number = {name: place for place, name in enumerate(names)}
    of_index = {index: number.get(name, -1) for index, name in spans.names.items()}
    waiting: list[tuple[int, int]] = []
    columns = ("iteration", "name", "end_ns", "size_bytes")
    for iteration, name, end_ns, size_bytes in backward[list(columns)].tolist():
        if waiting and waiting[0][0] != iteration:
            waiting.clear()
        waiting.append((iteration, of_index[name]))
        if size_bytes:
            for at in waiting:
                ready_ns[at] = end_ns
            handed_bytes[waiting[-1]] = size_bytes
            waiting.clear()
    return ready_ns, handed_bytes


def _check_sizes(rows: Rows, ready_ns: _Ints, handed_bytes: _Ints, tensors: _Ints) -> None:
    """What was ready at one time must be as large at the servers; iterations that are whole."""
    sent_bytes = np.zeros(ready_ns.shape, np.int64)
    np.add.at(sent_bytes, (rows["iteration"], tensors), rows["size_bytes"].astype(np.int64))
    for iteration in range(1, len(ready_ns)):
        if not (sent_bytes[iteration].all() and ready_ns[iteration].all()):
            continue
        _, together = np.unique(ready_ns[iteration], return_inverse=True)
        at_servers = np.bincount(together, sent_bytes[iteration])
        if not np.array_equal(at_servers, np.bincount(together, handed_bytes[iteration])):
            raise UserError(
                f"stock: in iteration {iteration} servers summed other sizes than backward made: "
                "gradients cannot be told apart"
            )
