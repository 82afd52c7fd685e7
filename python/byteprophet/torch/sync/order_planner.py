"""The order of an iteration, as the policy of this process plans it, and its record.

Threads: the training thread calls everything.
"""

from __future__ import annotations

from byteprophet._plugin import Plugin
from byteprophet.job.order_file import Order
from byteprophet.observe.order_recording import record_order
from byteprophet.session import process as observing

ReadyTimes = list[tuple[int, int, int, int]]
"""As ``_core.Policy.set_ready_times`` takes them."""


class OrderPlanner:
    """Plans with the policy of ``plugin``."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin

    def learned(self) -> tuple[int, ReadyTimes]:
        """The bandwidth in bit/s and the ready times of this worker; 0 and none if unknown."""
        return self._plugin.learned()

    def stage(self, bandwidth_bps: int, times: ReadyTimes) -> int | None:
        """Plan with them. Return from which iteration on, or None if another plan is in force."""
        return self._plugin.stage_order(bandwidth_bps, times)

    def record(self, bandwidth_bps: int, times: ReadyTimes, since: int) -> None:
        """Write what the order is planned from into the run directory, if there is one."""
        names = observing.tensor_names()
        ready = {
            names[tensor]: (ready_ns, spread_ns)
            for tensor, _, ready_ns, spread_ns in times
            if tensor in names
        }
        record_order(Order(bandwidth_bps, ready, since))
