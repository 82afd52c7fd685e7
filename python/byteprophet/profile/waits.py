"""What urgent gradients waited for: the promise of a window, checked on recorded transfers.

A partition is *most urgent* at its ready time if it outranks, among the partitions bound for its
server, all that were ready earlier and not yet sent, and all that were offered in the same moment:
strict priority sends it next. It waits only because of what was in flight: at most

    (window floor + one partition) / bandwidth

when the policy keeps its promise; the partition is the message that may have been let go just
before. The wait is ``sent - ready``. *New* most urgent: something was in flight to its server when
it became ready; on an idle link nothing is waited for, and nothing is shown.

Several partitions that become ready together are one tensor's or one burst's: of those offered
within ``TOGETHER_NS`` of the first only the most urgent counts, the others wait for it by design.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from byteprophet.timeline.transfers import Transfers

TOGETHER_NS = 1_000_000


@dataclass(frozen=True)
class Waits:
    """Waits of new most urgent partitions, in nanoseconds, and what they may be at most."""

    waits_ns: npt.NDArray[np.int64]
    allowed_ns: float

    @property
    def p99_ns(self) -> float:
        """The 99th percentile; 0 if there were none."""
        return float(np.percentile(self.waits_ns, 99)) if len(self.waits_ns) else 0.0


def allowed_wait_ns(floor_bytes: int, partition_bytes: int, bandwidth_bps: float) -> float:
    """(window floor + one partition) / bandwidth."""
    return (floor_bytes + partition_bytes) * 8e9 / bandwidth_bps


def urgent_waits_ns(transfers: Transfers) -> npt.NDArray[np.int64]:
    """How long each new most urgent partition waited, in the order in which they became ready."""
    waits = [
        _server_waits(transfers[transfers["server"] == server])
        for server in np.unique(transfers["server"])
    ]
    return np.concatenate(waits) if waits else np.empty(0, np.int64)


def _server_waits(transfers: Transfers) -> npt.NDArray[np.int64]:
    ranked = transfers[transfers["priority"] < 0]
    ranked = ranked[np.argsort(ranked["ready_ns"], kind="stable")]
    waits = []
    begin = 0
    while begin < len(ranked):
        end = int(
            np.searchsorted(ranked["ready_ns"], ranked["ready_ns"][begin] + TOGETHER_NS, "right")
        )
        group = ranked[begin:end]
        best = group[np.lexsort((group["key"], -group["priority"].astype(np.int64)))[0]]
        now = best["ready_ns"]
        before = ranked[:begin]
        pending = before[before["sent_ns"] > now]
        in_flight = np.any((transfers["sent_ns"] <= now) & (transfers["acked_ns"] > now))
        if in_flight and np.all(pending["priority"] < best["priority"]):
            waits.append(int(best["sent_ns"] - now))
        begin = end
    return np.array(waits, np.int64)
