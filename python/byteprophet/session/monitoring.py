"""The variables that make a worker watch its network, and the monitor of this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from byteprophet.monitor.monitor import NetworkMonitor
from byteprophet.runtime_settings import flag
from byteprophet.session.controller_address import controller_of

if TYPE_CHECKING:
    from byteprophet._plugin import Plugin
    from byteprophet.session.job import SessionJob

VARIABLE = "BYTEPROPHET_MONITOR"
PROBE_VARIABLE = "BYTEPROPHET_PROBE"

_monitor: NetworkMonitor | None = None


def make_consumer(
    environment: Mapping[str, str], _plugin: Plugin, job: SessionJob
) -> NetworkMonitor | None:
    """A monitor for the observer, or None if the environment does not ask for one.

    A controller needs its bandwidths, and switches it on unless the variable says otherwise.
    """
    global _monitor
    _monitor = None
    if flag(environment, VARIABLE, "1" if controller_of(environment) else "0"):
        _monitor = NetworkMonitor(job.rank, job.run_directory, environment.get("DMLC_NODE_HOST"))
    return _monitor


def process_monitor() -> NetworkMonitor | None:
    """The monitor of this process, for its latest samples; None if the process has none."""
    return _monitor
