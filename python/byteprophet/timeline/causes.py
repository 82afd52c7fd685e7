"""Finds causes and effects between the roles of a job, as evidence about their clocks.

    messages           cause                      effect
    each of the four   begin_ns of its SEND       begin_ns of its RECEIVE

    transfers          cause                      effect
    push               sent_ns at the worker      arrived_ns at the server
    acknowledgement    arrived_ns at the server   acked_ns at the worker
    answer             answered_ns at the server  pulled_ns at the worker

Recorders stamp a cause before it can have its effect, and an effect after it has happened
(native/byteps/record/messages.h, served.h, native/plugin/transfers.h). If both a worker and a
server recorded messages, their transfers are not used, because messages are stamped closer to the
wire. ``acked_ns`` is the time of the acknowledgement or of the answer, whichever came first; both
follow the arrival. ``pulled_ns`` is the later of the two, so it is not before the answer. Rows are
matched without any clock: by the worker's number of the message, or by key and round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from byteprophet.order_statistics import distinct
from byteprophet.timeline.alignment_evidence import Evidence
from byteprophet.timeline.events import Events
from byteprophet.timeline.joined import served_rows, worker_numbers
from byteprophet.timeline.tables import MESSAGES, Kind, Rows, What


def evidence_of(events: Sequence[Events]) -> list[Evidence]:
    """All causes and effects among ``events`` of known machines. No returned item is empty."""
    events = [table for table in events if table.origin.machine]
    found = []
    pairs = set()
    for worker, server, number in _both_ends(events):
        of_messages = _messages(worker, server, number)
        if of_messages:
            pairs.add((worker.origin.role, server.origin.role))
            found += of_messages
    for index, (tables, places) in served_rows(events).items():
        worker = events[index]
        for table in distinct(tables[tables >= 0]).tolist():
            server = events[table]
            if (worker.origin.role, server.origin.role) not in pairs:
                mine = tables == table
                machines = worker.origin.machine, server.origin.machine
                found += _transfers(*machines, worker.rows[mine], server.rows[places[mine]])
    return found


def _both_ends(events: Sequence[Events]) -> list[tuple[Events, Events, int]]:
    """Each worker's messages, with each server's messages and the worker's number there."""
    tables = [table for table in events if table.table is MESSAGES]
    servers = [table for table in tables if table.origin.role.startswith("server")]
    workers = [table for table in tables if table.origin.role.startswith("worker")]
    workers.sort(key=lambda table: table.origin.rank)
    numbers = worker_numbers(workers)
    return [
        (worker, server, number)
        for number, worker in zip(numbers, workers, strict=True)
        for server in servers
    ]


def _messages(worker: Events, server: Events, number: int) -> list[Evidence]:
    found = []
    at_worker = worker.rows[worker.rows["peer"] == server.origin.rank]
    at_server = server.rows[server.rows["peer"] == number]
    for what in What:
        pair = (worker.origin.machine, at_worker), (server.origin.machine, at_server)
        if what in (What.ACKNOWLEDGEMENT, What.ANSWER):
            pair = pair[1], pair[0]
        (sender, sent), (receiver, received) = pair
        sent = sent[(sent["what"] == what) & (sent["kind"] == Kind.SEND)]
        received = received[(received["what"] == what) & (received["kind"] == Kind.RECEIVE)]
        _, one, other = np.intersect1d(sent["request"], received["request"], return_indices=True)
        if len(one):
            times = sent["begin_ns"][one], received["begin_ns"][other]
            size_bytes = sent["size_bytes"][one].astype(np.int64)
            found.append(Evidence(sender, receiver, what.name.lower(), *times, size_bytes))
    return found


def _transfers(worker: str, server: str, sent: Rows, served: Rows) -> list[Evidence]:
    """Evidence from a worker's transfers (``sent``) and the same pushes at a server (``served``).

    Both arrays match row by row. ``worker`` and ``server`` are the names of the machines.
    """
    size_bytes = sent["size_bytes"].astype(np.int64)
    nothing = np.zeros(len(sent), np.int64)
    found = []
    for cause_machine, effect_machine, kind, cause_ns, effect_ns, payload in (
        (worker, server, "push", sent["sent_ns"], served["arrived_ns"], size_bytes),
        (server, worker, "acknowledgement", served["arrived_ns"], sent["acked_ns"], nothing),
        (server, worker, "answer", served["answered_ns"], sent["pulled_ns"], size_bytes),
    ):
        known = (cause_ns != 0) & (effect_ns != 0)
        if known.any():
            times = cause_ns[known], effect_ns[known]
            found.append(Evidence(cause_machine, effect_machine, kind, *times, payload[known]))
    return found
