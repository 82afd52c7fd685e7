"""BYTEPROPHET_MONITOR=1: the process that talks to the servers watches its network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from byteprophet.errors import UserError
from byteprophet.network.monitor import NetworkMonitor

if TYPE_CHECKING:
    from byteprophet._plugin import Plugin
    from byteprophet.observe.observer import Job

VARIABLE = "BYTEPROPHET_MONITOR"

_monitor: NetworkMonitor | None = None


def check(environment: Mapping[str, str]) -> bool:
    """Whether the network is to be watched; UserError for a wrong value."""
    value = environment.get(VARIABLE, "0")
    if value not in ("0", "1"):
        raise UserError(f"{VARIABLE}={value}: must be 0 or 1")
    return value == "1"


def wanted(environment: Mapping[str, str], _plugin: Plugin, job: Job) -> NetworkMonitor | None:
    """A monitor for the observer, if asked for."""
    global _monitor
    _monitor = None
    if check(environment):
        _monitor = NetworkMonitor(job.rank, job.run_directory, environment.get("DMLC_NODE_HOST"))
    return _monitor


def process_monitor() -> NetworkMonitor | None:
    """The monitor of this process, for whoever wants its latest samples; None: it has none."""
    return _monitor
