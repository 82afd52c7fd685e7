"""Checks the monitor: compares the network interface's counters with the bytes of transfers.

A counter shows how much bandwidth was used, not how much is available, so no estimate is made from
it. But bytes that transfers do not explain are other traffic on the link, or retransmissions. The
estimate is then what they leave over. Frames have headers, so up to 5% more bytes are expected.
Interfaces count every process: on loopback all roles of a job, on a host with two workers both.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from typing import Any

import psutil

PERIOD_NS = 3_000_000_000
_EXPECTED = 1.05
_TOLERANCE = 0.10
_FEWEST_BYTES = 10_000_000  # with fewer, heartbeats and handshakes weigh too much


def interface_of(address: str | None) -> str | None:
    """The interface that has ``address``; None if there is none.

    Also None for loopback, which does not count a single role, and for a host's name, which may
    stand for several interfaces.
    """
    try:
        if address is None or ipaddress.ip_address(address).is_loopback:
            return None
    except ValueError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.family == socket.AF_INET and a.address == address for a in addresses):
            return name
    return None


class InterfaceCheck:
    """Compares bytes since the last ``restart``. ``interface`` None: there is no counter."""

    def __init__(self, interface: str | None) -> None:
        self._interface = interface
        self._looked_ns = 0
        self.restart()

    def restart(self) -> None:
        """Starts again, because there was expected traffic that transfers do not explain."""
        self._begin = self._latest = self._counters()
        self._explained = {"push": 0, "pull": 0}
        self._compared = dict(self._explained)  # what was explained when the counters were read

    def explain(self, direction: str, size_bytes: int) -> None:
        """Adds the bytes of transfers that the interface must have seen."""
        self._explained[direction] += size_bytes

    def look(self, now_ns: int) -> None:
        """Reads the counters, at most once per PERIOD_NS."""
        if now_ns - self._looked_ns >= PERIOD_NS:
            self._looked_ns = now_ns
            self._latest = self._counters()
            self._compared = dict(self._explained)

    def report(self) -> Mapping[str, Any]:
        """The result as plain data.

        It has ``interface``, the used and explained bytes of each direction, ``disagrees`` and a
        ``note`` with the reason. ``disagrees`` is None if nothing can be compared.
        """
        if self._begin is None or self._latest is None:
            note = "no interface of its own: loopback, or an address that is not found"
            return {"interface": self._interface, "disagrees": None, "note": note}
        used = {
            "push": self._latest[0] - self._begin[0],
            "pull": self._latest[1] - self._begin[1],
        }
        compared = {
            name: {"used_bytes": used[name], "explained_bytes": self._compared[name]}
            for name in used
        }
        notes = [
            f"{name}: the interface counted {100 * ratio:.0f}% of what transfers explain"
            for name, ratio in ((name, _ratio(**row)) for name, row in compared.items())
            if ratio is not None and abs(ratio - _EXPECTED) > _TOLERANCE
        ]
        known = all(_ratio(**row) is not None for row in compared.values())
        return {
            "interface": self._interface,
            **compared,
            "disagrees": bool(notes) if known else None,
            "note": "; ".join(notes) if known else "too little traffic to compare",
        }

    def _counters(self) -> tuple[int, int] | None:
        """The interface's total bytes sent and received; None if there is no such interface."""
        if self._interface is None:
            return None
        counters = psutil.net_io_counters(pernic=True).get(self._interface)
        return None if counters is None else (counters.bytes_sent, counters.bytes_recv)


def _ratio(used_bytes: int, explained_bytes: int) -> float | None:
    return used_bytes / explained_bytes if explained_bytes >= _FEWEST_BYTES else None
