"""The variables that have a worker watch its network, and the monitor of this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from byteprophet.network.monitor import NetworkMonitor
from byteprophet.runtime_settings import flag

if TYPE_CHECKING:
    from byteprophet._plugin import Plugin
    from byteprophet.observe.observer import Job

VARIABLE = "BYTEPROPHET_MONITOR"
PROBE_VARIABLE = "BYTEPROPHET_PROBE"

_monitor: NetworkMonitor | None = None


def wanted(environment: Mapping[str, str], _plugin: Plugin, job: Job) -> NetworkMonitor | None:
    """A monitor for the observer, if asked for."""
    global _monitor
    _monitor = None
    if flag(environment, VARIABLE):
        _monitor = NetworkMonitor(job.rank, job.run_directory, environment.get("DMLC_NODE_HOST"))
    return _monitor


def process_monitor() -> NetworkMonitor | None:
    """The monitor of this process, for whoever wants its latest samples; None: it has none."""
    return _monitor
