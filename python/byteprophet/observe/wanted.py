"""Which consumers a process wants: each kind is a function that looks at the environment.

Adding a kind: a function that takes the environment, the plug-in and the ``Job`` and returns a
consumer or None, and its line in ``_MAKERS``. Recording has more than one, and comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from byteprophet._plugin import Plugin
from byteprophet.control import wanted as control
from byteprophet.network import monitoring
from byteprophet.observe import recording
from byteprophet.observe.observer import Consumer, Job
from byteprophet.profile import saving

Maker = Callable[[Mapping[str, str], Plugin, Job], Consumer | None]

# In this order they see each batch of transfers.
_MAKERS: tuple[Maker, ...] = (saving.wanted, monitoring.wanted, control.wanted)


def make_consumers(environment: Mapping[str, str], plugin: Plugin, job: Job) -> list[Consumer]:
    """All that ``environment`` asks for."""
    recorders = recording.wanted(environment, plugin, job)
    others = [make(environment, plugin, job) for make in _MAKERS]
    return [*recorders, *(consumer for consumer in others if consumer is not None)]
