"""What roles of a job say about one another's clocks: which event at one caused which at another.

    kind              cause                      effect
    push              sent_ns at the worker      arrived_ns at the server
    acknowledgement   arrived_ns at the server   acked_ns at the worker
    answer            answered_ns at the server  pulled_ns at the worker

Recorders take the time of a cause before it can have its effect, and that of an effect after it has
come (native/plugin/transfers.h, native/byteps/record/served.h). ``acked_ns`` is the first of
acknowledgement and answer, and both come after the arrival; ``pulled_ns`` is the second, and so not
before the answer. The request of a pull (``asked_ns``) follows its push through the same socket, so
it says nothing that the arrival does not. Which rows belong together is known without any clock
(``joined.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from byteprophet.timeline.alignment_evidence import Evidence
from byteprophet.timeline.events import Events
from byteprophet.timeline.joined import served_rows
from byteprophet.timeline.tables import Rows


def evidence_of(events: Sequence[Events]) -> list[Evidence]:
    """All causes and effects among ``events`` of known machines; none of it is empty."""
    found = []
    for index, (tables, places) in served_rows(events).items():
        worker = events[index]
        for table in np.unique(tables[tables >= 0]).tolist():
            server = events[table]
            if worker.origin.machine and server.origin.machine:
                mine = tables == table
                pair = worker.origin.machine, server.origin.machine
                found += _between(*pair, worker.rows[mine], server.rows[places[mine]])
    return found


def _between(worker: str, server: str, sent: Rows, served: Rows) -> list[Evidence]:
    """Row by row, a worker's transfers and the same pushes at a server; both as machines."""
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
