"""Records when a script needs all averages of an iteration before it updates.

Clipping does, and so does ``GradScaler``. Then no update can begin before all averages have
arrived, and only all-gathers of updated shards overlap with the next forward pass. A replay has to
know (``Times``).

Threads: the script's own. Recorders are made before training, or between iterations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from weakref import WeakSet

from byteprophet.observe.span_log import SpanLog, process_spans
from byteprophet.timeline.tables import ALL_AVERAGES, Kind

_logs = WeakSet([process_spans])


def record_in(log: SpanLog) -> None:
    """Record in ``log``, too, while it records."""
    _logs.add(log)


@contextmanager
def needed() -> Iterator[None]:
    """A context manager around the wait for all averages, which may be over at once."""
    with ExitStack() as spans:
        for log in list(_logs):
            spans.enter_context(log.span(Kind.WAIT, ALL_AVERAGES))
        yield
