"""Sums of transfers for the live view: bytes, busy time and window per server; times of tensors.

Sums only grow, so that whoever reads them now and then gets the rates in between, however often
reads fail. Only ``recent`` figures are of the last seconds: the window, and the tensors.

*Busy time* of a direction is the time in which at least one message was in flight: from the
policy's decision to the acknowledgement (push), from the acknowledgement to the answer (pull).
Transfers come in order of their answers, which may be late by seconds after their
acknowledgements. So the times that were covered are kept for a while, and a message adds what it
covers anew.

*Window*: the largest number of bytes in flight to a server at once, over the latest transfers.

One thread uses this, the observer's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from byteprophet.timeline.tables import Transfers

_BATCHES = 8  # 2 s
_MOST_ROWS = 4096  # of them, per server
_KEPT_NS = 10_000_000_000
_GENERATION_NS = 5_000_000_000
_MOST_NAMES = 12

Ints = npt.NDArray[np.int64]


@dataclass
class _Link:
    """The sums of one server. ``latest``: the transfers of the latest batches, some empty."""

    push_bytes: int = 0
    pull_bytes: int = 0
    push_busy_ns: int = 0
    pull_busy_ns: int = 0
    pushed: Cover = field(default_factory=lambda: Cover())
    pulled: Cover = field(default_factory=lambda: Cover())
    latest: deque[Transfers] = field(default_factory=lambda: deque(maxlen=_BATCHES))

    def in_flight_bytes(self) -> int:
        """The window, over the latest transfers."""
        rows = np.concatenate(self.latest)[-_MOST_ROWS:]
        sizes = rows["size_bytes"].astype(np.int64)
        return most_in_flight(rows["sent_ns"], rows["acked_ns"], sizes)


class Traffic:
    """Adds up transfers. ``names``: of tensors by number (``key >> 16``); it may grow."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._links: dict[int, _Link] = {}
        self._sums = {"transfers": 0, "held_ns": 0, "travel_ns": 0, "peers_ns": 0}
        self._tensors = Recent()

    def add(self, transfers: Transfers, now_ns: int) -> None:
        """Adds completed transfers (TRANSFER)."""
        for link in self._links.values():
            link.latest.append(transfers[:0])
        if not len(transfers):
            return
        sizes = transfers["size_bytes"].astype(np.int64)
        held_ns = np.maximum(0, transfers["sent_ns"] - transfers["ready_ns"])
        travel_ns = np.maximum(0, transfers["pulled_ns"] - transfers["sent_ns"])
        peers_ns = np.maximum(0, transfers["pulled_ns"] - transfers["acked_ns"])
        self._sums["transfers"] += len(transfers)
        for name, values in (
            ("held_ns", held_ns),
            ("travel_ns", travel_ns),
            ("peers_ns", peers_ns),
        ):
            self._sums[name] += int(values.sum())
        for server in np.unique(transfers["server"]).tolist():
            own = transfers["server"] == server
            self._add_to(self._links.setdefault(server, _Link()), transfers[own], sizes[own])
        numbers, places = np.unique(transfers["key"] >> np.uint64(16), return_inverse=True)
        columns = (np.ones(len(sizes), np.int64), sizes, held_ns, travel_ns)
        sums = [np.bincount(places, weights=column).astype(np.int64).tolist() for column in columns]
        for number, *values in zip(numbers.tolist(), *sums, strict=True):
            self._tensors.add(self._names.get(number, ""), values)
        self._tensors.age(now_ns)

    def links(self) -> list[dict[str, int]]:
        """The sums by server."""
        return [
            {
                "server": server,
                "push_bytes": link.push_bytes,
                "pull_bytes": link.pull_bytes,
                "push_busy_ns": link.push_busy_ns,
                "pull_busy_ns": link.pull_busy_ns,
                "in_flight_bytes": link.in_flight_bytes(),
            }
            for server, link in sorted(self._links.items())
        ]

    def sums(self) -> dict[str, int]:
        """Transfers, and the sums of three times of theirs.

        ``held_ns``: the policy held them. ``travel_ns``: from then to the answer. ``peers_ns``: the
        part of it after the acknowledgement, in which other workers' pushes were missing, or the
        answer travelled.
        """
        return dict(self._sums)

    def tensors(self) -> list[dict[str, Any]]:
        """The tensors that took longest in the last seconds, as means per transfer."""
        rows: list[dict[str, Any]] = [
            {
                "name": name,
                "size_bytes": size_bytes // count,
                "held_ns": held_ns // count,
                "travel_ns": travel_ns // count,
            }
            for name, (count, size_bytes, held_ns, travel_ns) in self._tensors.items()
            if name and count
        ]
        return sorted(rows, key=lambda row: -row["held_ns"] - row["travel_ns"])[:_MOST_NAMES]

    def _add_to(self, link: _Link, transfers: Transfers, sizes: Ints) -> None:
        sent_ns, acked_ns, pulled_ns = (
            transfers[name] for name in ("sent_ns", "acked_ns", "pulled_ns")
        )
        size_bytes = int(sizes.sum())
        link.push_bytes += size_bytes
        link.pull_bytes += size_bytes
        link.push_busy_ns += link.pushed.add(sent_ns, acked_ns)
        link.pull_busy_ns += link.pulled.add(acked_ns, pulled_ns)
        if link.latest:
            link.latest[-1] = transfers
        else:
            link.latest.append(transfers)


class Cover:
    """The times that intervals have covered so far; those of long ago are forgotten.

    What begins before a forgotten time counts from there on.
    """

    def __init__(self) -> None:
        self._begins_ns: Ints = np.zeros(0, np.int64)
        self._ends_ns: Ints = np.zeros(0, np.int64)
        self._from_ns = 0

    def add(self, begins_ns: Ints, ends_ns: Ints) -> int:
        """How much time these intervals cover that was not covered before."""
        before_ns = self._covered_ns()
        # Clipped, an interval may be empty; those that are kept are not.
        begins_ns = np.concatenate((self._begins_ns, np.maximum(begins_ns, self._from_ns)))
        ends_ns = np.concatenate((self._ends_ns, np.maximum(ends_ns, self._from_ns)))
        ends_ns = np.maximum(begins_ns, ends_ns)
        order = np.argsort(begins_ns, kind="stable")
        begins_ns, latest_ns = begins_ns[order], np.maximum.accumulate(ends_ns[order])
        apart = begins_ns[1:] > latest_ns[:-1]
        self._begins_ns = begins_ns[np.concatenate(([True], apart))]
        self._ends_ns = latest_ns[np.concatenate((apart, [True]))]
        new_ns = self._covered_ns() - before_ns
        self._forget()
        return new_ns

    def _covered_ns(self) -> int:
        return int((self._ends_ns - self._begins_ns).sum())

    def _forget(self) -> None:
        from_ns = int(self._ends_ns[-1]) - _KEPT_NS
        kept = self._ends_ns > from_ns
        self._begins_ns, self._ends_ns = self._begins_ns[kept], self._ends_ns[kept]
        self._from_ns = max(self._from_ns, from_ns)


class Recent:
    """Sums by name over the last seconds: of two generations, the older one is forgotten."""

    def __init__(self) -> None:
        self._young: dict[str, list[int]] = {}
        self._old: dict[str, list[int]] = {}
        self._born_ns: int | None = None

    def add(self, name: str, values: Iterable[int]) -> None:
        """Adds ``values`` to the sums of ``name``."""
        known = self._young.get(name)
        new = list(values)
        self._young[name] = new if known is None else _added(known, new)

    def age(self, now_ns: int) -> None:
        """Begins a new generation if the young one is old enough."""
        if self._born_ns is None:
            self._born_ns = now_ns
        elif now_ns - self._born_ns >= _GENERATION_NS:
            self._old, self._young, self._born_ns = self._young, {}, now_ns

    def items(self) -> list[tuple[str, list[int]]]:
        """Names and sums of both generations."""
        names = {**self._old, **self._young}
        return [
            (name, _added(self._old[name], self._young[name]) if self._both(name) else values)
            for name, values in names.items()
        ]

    def _both(self, name: str) -> bool:
        return name in self._old and name in self._young


def most_in_flight(sent_ns: Ints, acked_ns: Ints, sizes: Ints) -> int:
    """The largest sum of ``sizes`` of messages that were in flight at the same time."""
    times_ns = np.concatenate((acked_ns, sent_ns))
    changes = np.concatenate((-sizes, sizes))
    # Stable: at one time, what arrives is counted before what is sent.
    return int(np.cumsum(changes[np.argsort(times_ns, kind="stable")]).max(initial=0))


def _added(one: Iterable[int], other: Iterable[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]
