"""The variables that have a worker watch its network, and the monitor of this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from byteprophet.errors import UserError
from byteprophet.network.monitor import NetworkMonitor

if TYPE_CHECKING:
    from byteprophet._plugin import Plugin
    from byteprophet.observe.observer import Job

VARIABLE = "BYTEPROPHET_MONITOR"
PROBE_VARIABLE = "BYTEPROPHET_PROBE"

_monitor: NetworkMonitor | None = None


def is_on(environment: Mapping[str, str], variable: str) -> bool:
    """Whether ``variable`` is 1; UserError unless it is 0, 1 or unset."""
    value = environment.get(variable, "0")
    if value not in ("0", "1"):
        raise UserError(f"{variable}={value}: must be 0 or 1")
    return value == "1"


def wanted(environment: Mapping[str, str], _plugin: Plugin, job: Job) -> NetworkMonitor | None:
    """A monitor for the observer, if asked for."""
    global _monitor
    _monitor = None
    if is_on(environment, VARIABLE):
        _monitor = NetworkMonitor(job.rank, job.run_directory, environment.get("DMLC_NODE_HOST"))
    return _monitor


def process_monitor() -> NetworkMonitor | None:
    """The monitor of this process, for whoever wants its latest samples; None: it has none."""
    return _monitor
