"""The order of an iteration, as the policy of this process plans it, and its record.

Threads: the training thread calls everything.
"""

from __future__ import annotations

from collections.abc import Mapping

from byteprophet._plugin import Learned, Plugin
from byteprophet.job.order_file import Order
from byteprophet.observe.order_recording import record_order
from byteprophet.session import process as observing


class OrderPlanner:
    """Plans with the policy of ``plugin``."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._order: Order | None = None  # to be recorded
        self._begins = 0  # with this iteration

    def learned(self) -> Learned:
        """What the policy has learned."""
        return self._plugin.learned()

    def stage(self, bandwidth_bps: int, ready_ns: Mapping[int, int]) -> int:
        """Plan with them, from the next iteration on; return its number, 0 without a policy."""
        return self._plugin.stage_order(bandwidth_bps, ready_ns)

    def record(
        self, bandwidth_bps: int, ready_ns: Mapping[int, int], since: int, *, once_begun: int
    ) -> None:
        """Have ``record_what_holds`` write this order once the iteration ``once_begun`` is over.

        ``since``: the first iteration with an order of these tensors.
        """
        names = observing.tensor_names()
        ready = {names[tensor]: at_ns for tensor, at_ns in ready_ns.items() if tensor in names}
        self._order, self._begins = Order(bandwidth_bps, ready, since), once_begun

    def record_what_holds(self) -> None:
        """Write the order into the run directory, if there is a new one that is in use."""
        if self._order is not None and self._plugin.iteration() > self._begins:
            record_order(self._order)
            self._order = None
