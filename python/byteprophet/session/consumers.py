"""Makes the consumers that a process' environment asks for, with one function per kind.

To add a kind, write a function that takes the environment, the plug-in and the ``SessionJob`` and
returns a consumer or None, and add it to ``_MAKERS``. Recording has several consumers; they come
first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from byteprophet._plugin import Plugin
from byteprophet.observe import live, recording
from byteprophet.observe.observer import Consumer
from byteprophet.session import controlling, monitoring, profiling
from byteprophet.session.job import SessionJob


def _live(environment: Mapping[str, str], _plugin: Plugin, job: SessionJob) -> Consumer | None:
    return live.make_consumer(environment, job, has_transfers=True)


Maker = Callable[[Mapping[str, str], Plugin, SessionJob], Consumer | None]

# The consumers get each batch of transfers in this order.
_MAKERS: tuple[Maker, ...] = (
    profiling.make_consumer,
    monitoring.make_consumer,
    controlling.make_consumer,
    _live,
)


def make_consumers(
    environment: Mapping[str, str], plugin: Plugin, job: SessionJob
) -> list[Consumer]:
    """All consumers that ``environment`` asks for."""
    recorders = recording.make_consumers(environment, plugin, job)
    others = [make(environment, plugin, job) for make in _MAKERS]
    return [*recorders, *(consumer for consumer in others if consumer is not None)]
