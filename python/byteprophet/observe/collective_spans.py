"""Spans of collectives of torch.distributed, which end in threads of the process group."""

from __future__ import annotations

from typing import Any, Protocol

from byteprophet.observe.span_log import SpanLog
from byteprophet.timeline.tables import Kind


class Work(Protocol):
    """The part of ``torch.distributed.Work`` that is used here."""

    def get_future(self) -> Any:
        """A future that completes with the collective."""
        ...


def record_until_done(
    spans: SpanLog, work: Work, label: str, size_bytes: int, ahead: int = 0
) -> None:
    """Add a COLLECTIVE span from now until ``work``, which carries ``size_bytes``, is done.

    The span belongs to the iteration that is ``ahead`` iterations after the current one.
    """
    begin_ns, iteration = spans.clock(), spans.iteration + ahead

    def done(_future: Any) -> None:
        spans.add(
            Kind.COLLECTIVE,
            label,
            begin_ns,
            spans.clock(),
            iteration=iteration,
            size_bytes=size_bytes,
            lane=spans.lane(label),
        )

    work.get_future().then(done)
