"""What urgent gradients waited for: the promise of a window, checked on recorded transfers.

A partition is *new most urgent* if, when it becomes ready,

- it outranks all partitions for its server that were ready before and are not sent yet,
- it is the most urgent of those for its server that become ready within ``TOGETHER_NS`` of the
  first of them (a burst, or one tensor's partitions: the others wait for it by design), and
- something is in flight to its server: on an idle link nothing is waited for.

Strict priority sends it next, unless something more urgent still becomes ready before its turn. So
its wait, from ready until it is sent or outranked, is for what was in flight: at most

    (window + one partition) / bandwidth

where the window is what the policy lets in flight whatever comes, and one more partition may have
been let go while less than a window was in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from byteprophet import _core
from byteprophet.order_statistics import groups
from byteprophet.timeline.tables import Transfers

TOGETHER_NS = 1_000_000
_SLACK_S = 1e-3  # of prophet's automatic window floor (prophet/policy/prophet.h)


def urgent_waits_ns(transfers: Transfers) -> npt.NDArray[np.int64]:
    """The wait of each new most urgent partition."""
    ranked = transfers[transfers["priority"] < 0]
    waits = [
        wait
        for each in groups(ranked["iteration"], ranked["server"])
        for wait in _waits(ranked[each])
    ]
    return np.array(waits, np.int64)


def window_bytes(settings: Mapping[str, int], transfers: Transfers, link_bps: float) -> int | None:
    """What a policy with ``settings`` lets in flight to a server whatever comes; None: no limit.

    ``prophet`` derives it from the link if ``window_floor_bytes`` is 0: one partition, and what the
    link carries in the shortest acknowledgement delay and a millisecond, or what acknowledgements
    wait for if that is more.
    """
    partition_bytes = settings["partition_bytes"]
    if "outstanding_messages" in settings:
        return settings["outstanding_messages"] * partition_bytes
    if "credit_bytes" in settings:
        return settings["credit_bytes"]
    if "window_floor_bytes" not in settings:
        return None
    if settings["window_floor_bytes"] > 0:
        return settings["window_floor_bytes"]
    if not len(transfers):
        return None
    delay_s = float((transfers["acked_ns"] - transfers["sent_ns"]).min()) / 1e9
    return partition_bytes + max(_core.ACKS_WAIT_BYTES, int(link_bps / 8 * (delay_s + _SLACK_S)))


def allowed_wait_ns(window: int, partition_bytes: int, server_bps: float) -> float:
    """(window + one partition) / bandwidth towards the server."""
    return (window + partition_bytes) * 8e9 / server_bps


def _waits(transfers: Transfers) -> Iterator[int]:
    """Of one iteration and server."""
    transfers = transfers[np.argsort(transfers["ready_ns"], kind="stable")]
    ready_ns = transfers["ready_ns"]
    begin = 0
    while begin < len(transfers):
        end = int(np.searchsorted(ready_ns, ready_ns[begin] + TOGETHER_NS, "right"))
        group = transfers[begin:end]
        best = group[np.lexsort((group["key"], -group["priority"].astype(np.int64)))[0]]
        now = best["ready_ns"]
        pending = transfers[:begin][transfers["sent_ns"][:begin] > now]
        others = transfers[transfers["key"] != best["key"]]
        in_flight = (others["sent_ns"] <= now) & (others["acked_ns"] > now)
        if np.any(in_flight) and np.all(pending["priority"] < best["priority"]):
            outranks = (transfers["priority"] > best["priority"]) & (ready_ns > now)
            outranked_ns = ready_ns[outranks].min(initial=best["sent_ns"])
            yield int(min(best["sent_ns"], outranked_ns) - now)
        begin = end
