"""Which consumers a process wants: each kind is a function that looks at the environment.

Adding a kind: a function that takes the environment, the plug-in and the ``Job`` and returns a
consumer or None, and its line in ``_MAKERS``.
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
_MAKERS: tuple[Maker, ...] = (recording.wanted, saving.wanted, monitoring.wanted, control.wanted)


def make_consumers(environment: Mapping[str, str], plugin: Plugin, job: Job) -> list[Consumer]:
    """All that ``environment`` asks for."""
    made = [make(environment, plugin, job) for make in _MAKERS]
    return [consumer for consumer in made if consumer is not None]
