"""The four tables of recorded events, as numpy rows.

    transfers   workers: each partition in each iteration, as the plug-in records it
    served      servers: the same partitions, from their arrival to the answer
    messages    both: the messages between them, from ps-lite to the wire and back
    spans       all roles: start and end of work in a thread or on a device (layers, updates, ...)

All times are integer nanoseconds of the role's own monotonic clock (``events.py`` identifies the
machine). 0 stands for a time that is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.void]
"""Rows of any of the tables."""

Transfers = npt.NDArray[np.void]
"""Rows of the type ``TRANSFER``."""

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
acked_ns   the server has the push         pulled_ns  the answer to the pull has arrived

``key`` is the tensor's number << 16, plus the partition's number. ``iteration`` counts from 1;
transfers that were ready before the first iteration (broadcasts of parameters) have 0. A priority
of 0 or more means that the tensor has no place in the forward order. ``round``: as in ``SERVED``; 0
if it is not known.
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

arrived_ns    the push was received            sum_begin_ns, sum_end_ns   it was copied or added
asked_ns      the pull's request arrived       answered_ns                the answer was handed to
                                                                          the connection

``worker``: the worker's rank; only the process of a worker that talks to servers counts.
``round``: n for this worker's n-th push of the key, from 1. The key's initialisation is round 0
and is not recorded.
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

A SEND (``kind``) begins when the message is handed to its data link or to ZeroMQ, and ends when
that releases it: when the kernel has taken the last of it. Without a data link, small parts end
just before the kernel gets them, and a message without parts ends when the call returns. A
RECEIVE begins when a receiving thread has the message, and ends when it is unpacked.
``size_bytes`` is the size of the payload. ``request`` is the worker's number of the push or pull;
it is the same at both ends. ``peer`` is the rank of the server or, at a server, of the worker.
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
"""One piece of work. ``name`` is the index of its name.

``size_bytes``: bytes moved or reduced; for BACKWARD, bytes of the gradients that are complete at
its end; else 0.

Spans of one ``lane`` (a thread, a stream, a device) of one role are disjoint or nested.
``iteration`` is as in transfers; 0 if there is none.
"""


class Kind(IntEnum):
    """What a span is; the numbers are those in files."""

    ITERATION = 0  # from the start of one iteration to that of the next
    FORWARD = 1  # of one layer, without waits
    BACKWARD = 2
    UPDATE = 3  # of one parameter; updates made in one call share its time by their bytes
    WAIT = 4  # the computing thread waits for communication
    COMPUTE = 5  # any other computation, e.g. a kernel
    COLLECTIVE = 6  # all of one collective, as one rank sees it
    SEND = 7
    RECEIVE = 8


ALL_AVERAGES = "all averages"
"""The name of a wait in which the script needs all averages before it updates. It may take no
time."""


class What(IntEnum):
    """What a message is; the numbers are those in files."""

    PUSH = 0  # a gradient, sent to the server
    ACKNOWLEDGEMENT = 1
    REQUEST = 2  # a request for the sum
    ANSWER = 3


@dataclass(frozen=True)
class TableKind:
    """A table and its columns.

    ``text``: the column of names in files, "" for none. ``orders``: pairs of times, of which the
    first must not be after the second if both are known. ``added``: columns that schema 2 does not
    have. ``below``: exclusive upper limits of columns, by name.
    """

    name: str
    dtype: np.dtype[np.void]
    text: str
    orders: tuple[tuple[str, str], ...]
    added: tuple[str, ...] = ()
    below: tuple[tuple[str, int], ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The fields that files contain: all but padding and the index of the name."""
        names = self.dtype.names or ()
        return tuple(name for name in names if name not in ("reserved", "name"))

    @property
    def times(self) -> tuple[str, ...]:
        """The columns that are times."""
        return tuple(name for name in self.columns if name.endswith("_ns"))

    def name_indices(self, rows: Rows) -> npt.NDArray[np.uint64]:
        """Each row's index into ``Events.names``: the tensor's number, or the field ``name``."""
        if self.name == "transfers":
            return tensor_of(rows)
        indices: npt.NDArray[np.uint64] = rows["name"].astype(np.uint64)
        return indices


_SIZE = ("size_bytes", 2**50)  # a pebibyte: sums stay inside int64
_KEY = ("key", 2**47)  # a tensor's number and 16 bits; fits in a signed number, also negated

TRANSFERS = TableKind(
    "transfers",
    TRANSFER,
    "tensor",
    (("ready_ns", "sent_ns"), ("sent_ns", "acked_ns"), ("acked_ns", "pulled_ns")),
    added=("round",),
    below=(_KEY, _SIZE),
)
SERVED_TABLE = TableKind(
    "served",
    SERVED,
    "",
    (("arrived_ns", "sum_begin_ns"), ("sum_begin_ns", "sum_end_ns"), ("asked_ns", "answered_ns")),
    below=(_KEY, _SIZE),
)
MESSAGES = TableKind(
    "messages",
    MESSAGE,
    "",
    (("begin_ns", "end_ns"),),
    below=(("what", len(What)), ("kind", len(Kind)), _KEY, _SIZE),
)
SPANS = TableKind(
    "spans", SPAN, "name", (("begin_ns", "end_ns"),), below=(("kind", len(Kind)), _SIZE)
)

TABLES: Mapping[str, TableKind] = {t.name: t for t in (TRANSFERS, SERVED_TABLE, MESSAGES, SPANS)}


def tensor_of(rows: Rows) -> npt.NDArray[np.uint64]:
    """The number of each row's tensor, from its key."""
    numbers: npt.NDArray[np.uint64] = rows["key"] >> np.uint64(16)
    return numbers
