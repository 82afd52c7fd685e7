"""The four tables of events that roles of a job leave, as numpy rows.

    transfers   workers: the way of each partition in each iteration, as the plug-in records it
    served      servers: the same partitions, from their arrival to the answer
    messages    both: what they sent each other, from ps-lite to the wire and back
    spans       anybody: what a thread or device did from when to when: layers, updates, collectives

All times are integer nanoseconds of the role's own monotonic clock (``events.py`` says which
machine's). A time that is not known is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.void]
"""Of any of the tables."""

Transfers = npt.NDArray[np.void]
"""Of ``TRANSFER``."""

TRANSFER = np.dtype(
    [
        ("key", np.uint64),
        ("size_bytes", np.uint64),
        ("ready_ns", np.int64),
        ("sent_ns", np.int64),
        ("acked_ns", np.int64),
        ("pulled_ns", np.int64),
        ("server", np.uint32),
        ("iteration", np.uint32),
        ("priority", np.int32),
        ("round", np.uint32),
    ]
)
"""One transfer, 64 bytes, as ``byteprophet::Transfer`` of native/plugin/transfers.h.

ready_ns   the policy was offered it       sent_ns    the PUSH loop took it
acked_ns   the server has the push         pulled_ns  the answer to the pull is here

``key`` is the tensor's number << 16, and the partition's. ``iteration`` counts from 1; what was
ready before the first began (broadcasts of parameters) has 0. A priority from 0 up marks what has
no place in the forward order. ``round``: as in ``SERVED``; 0 where it is not known.
"""

SERVED = np.dtype(
    [
        ("key", np.uint64),
        ("size_bytes", np.uint64),
        ("arrived_ns", np.int64),
        ("sum_begin_ns", np.int64),
        ("sum_end_ns", np.int64),
        ("asked_ns", np.int64),
        ("answered_ns", np.int64),
        ("worker", np.uint32),
        ("round", np.uint32),
    ]
)
"""One worker's push of one key in one round at a server, and the answer to that worker's pull.

arrived_ns    the push was received            sum_begin_ns, sum_end_ns   it was copied or added up
asked_ns      the request of the pull came     answered_ns                the answer was handed to
                                                                          the connection

``worker``: the rank of the worker (of its process that talks to servers, among those). ``round``:
the key's n-th push by this worker, from 1; the key's initialisation is round 0 and is not recorded.
"""

MESSAGE = np.dtype(
    [
        ("begin_ns", np.int64),
        ("end_ns", np.int64),
        ("key", np.uint64),
        ("size_bytes", np.uint64),
        ("request", np.uint32),
        ("peer", np.uint32),
        ("what", np.uint8),
        ("kind", np.uint8),
        ("reserved", np.uint8, 6),
    ]
)
"""One message of ps-lite, 48 bytes, as ``byteprophet::Message`` of native/byteps/record/messages.h.

Of a SEND (``kind``): handed to ZeroMQ, and given up by it: when the kernel had taken the last of
it, or, of small parts, was about to be given it; without parts, when the call returned.
Of a RECEIVE: a receiving thread has it, and it is unpacked. ``size_bytes``: of the payload.
``request``: the worker's number of the push or pull, by which its messages at both ends belong
together. ``peer``: the rank of the server, at a server of the worker.
"""

SPAN = np.dtype(
    [
        ("begin_ns", np.int64),
        ("end_ns", np.int64),
        ("size_bytes", np.uint64),
        ("iteration", np.uint32),
        ("name", np.uint32),
        ("lane", np.uint16),
        ("kind", np.uint8),
        ("reserved", np.uint8, 5),
    ]
)
"""One thing that was done. ``name``: index of its name.

``size_bytes``: moved or reduced; of BACKWARD, of the gradients complete at its end; else 0.

Spans of one ``lane`` (a thread, a stream, a device) of one role follow one another or are nested.
``iteration`` as in transfers; 0 where there is none.
"""


class Kind(IntEnum):
    """What a span is; the numbers are those in files."""

    ITERATION = 0  # from the begin of one iteration to that of the next
    FORWARD = 1  # of one layer, waits left out
    BACKWARD = 2
    UPDATE = 3  # of one parameter; those made in one call share its time by their bytes
    WAIT = 4  # of the computing thread, for communication
    COMPUTE = 5  # any other computation, as a kernel
    COLLECTIVE = 6  # all of one collective, as one rank sees it
    SEND = 7
    RECEIVE = 8


class What(IntEnum):
    """What a message is; the numbers are those in files."""

    PUSH = 0  # of a gradient, to the server
    ACKNOWLEDGEMENT = 1
    REQUEST = 2  # of the sum
    ANSWER = 3


@dataclass(frozen=True)
class TableKind:
    """A table's columns.

    ``text``: the column of names in files, "" for none. ``orders``: pairs of times that must not be
    the other way round, where both are known. ``added``: columns that schema 2 does not have.
    ``below``: limits of columns whose numbers stand for something.
    """

    name: str
    dtype: np.dtype[np.void]
    text: str
    orders: tuple[tuple[str, str], ...]
    added: tuple[str, ...] = ()
    below: tuple[tuple[str, int], ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Fields that files have, the index of the name left out."""
        names = self.dtype.names or ()
        return tuple(name for name in names if name not in ("reserved", "name"))

    @property
    def times(self) -> tuple[str, ...]:
        """Those of the columns that are times."""
        return tuple(name for name in self.columns if name.endswith("_ns"))

    def name_indices(self, rows: Rows) -> npt.NDArray[np.uint64]:
        """By which a row's name is found: the tensor's number, or the field ``name``."""
        if self.name == "transfers":
            return tensor_of(rows)
        indices: npt.NDArray[np.uint64] = rows["name"].astype(np.uint64)
        return indices


TRANSFERS = TableKind(
    "transfers",
    TRANSFER,
    "tensor",
    (("ready_ns", "sent_ns"), ("sent_ns", "acked_ns"), ("acked_ns", "pulled_ns")),
    added=("round",),
)
SERVED_TABLE = TableKind(
    "served",
    SERVED,
    "",
    (("arrived_ns", "sum_begin_ns"), ("sum_begin_ns", "sum_end_ns"), ("asked_ns", "answered_ns")),
)
MESSAGES = TableKind(
    "messages",
    MESSAGE,
    "",
    (("begin_ns", "end_ns"),),
    below=(("what", len(What)), ("kind", len(Kind))),
)
SPANS = TableKind("spans", SPAN, "name", (("begin_ns", "end_ns"),), below=(("kind", len(Kind)),))

TABLES: Mapping[str, TableKind] = {t.name: t for t in (TRANSFERS, SERVED_TABLE, MESSAGES, SPANS)}


def tensor_of(rows: Rows) -> npt.NDArray[np.uint64]:
    """The number of each row's tensor, from its key."""
    numbers: npt.NDArray[np.uint64] = rows["key"] >> np.uint64(16)
    return numbers
