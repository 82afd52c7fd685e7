"""Iterations of all workers, and who comes last.

Every worker tells when its latest iterations began, by its machine's monotonic clock. On one
machine these times can be compared as they are. Between machines they are brought onto the wall
clock, by the moment that every file has on both clocks, and are as good as the clocks' agreement.

An iteration begins with its first gradient, or, where torch exchanges gradients (``record()``, and
paced jobs without our front), with its forward pass. A worker that computes longer, or whose link
is slower, begins its iterations later than the others, which wait for it. If its link is slower, it
begins hardly later, because the others' gradients wait for its own at the servers. That shows in
the time from a push's acknowledgement to its answer: it is short only for the worker that pushes
last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from byteprophet.order_statistics import median
from byteprophet.watch.live_file import LiveStatus

_KEPT = 600  # iterations
_RECENT = 50
_LARGEST_GAP_NS = 600_000_000_000
_LARGEST_GAP = 10
"""An iteration is a pause, such as an evaluation, if it is longer than that time and than so many
usual iterations."""
_SAME_NS = 1_000_000_000  # by how much a wall clock may be set between two files


@dataclass(frozen=True)
class Lateness:
    """Of the latest ``of`` iterations, how many a worker began last, and by how much.

    ``behind_ns``: the median time by which it began later than the first worker, in all of them.
    """

    last: int
    of: int
    behind_ns: int


class Pacing:
    """The iterations seen so far. A role whose numbers begin anew begins anew here, too."""

    def __init__(self) -> None:
        self._starts: dict[str, dict[int, int]] = {}  # by role and number, on the common clock
        self._lives: dict[str, tuple[int, str]] = {}
        self.one_clock = True  # all workers are on one machine

    def add(self, statuses: Mapping[str, LiveStatus]) -> None:
        """Adds the latest file of each role."""
        self.one_clock = len({status.machine for status in statuses.values()}) <= 1
        for role, status in statuses.items():
            ahead_ns = 0 if self.one_clock else status.unix_ns - status.monotonic_ns
            starts = self._starts.setdefault(role, {})
            life = (status.pid, status.machine)
            if self._lives.setdefault(role, life) != life:
                starts.clear()
                self._lives[role] = life
            before = 0
            for number, start_ns in status.starts:  # in order of time
                known_ns = starts.get(number, start_ns + ahead_ns)
                if number <= before or abs(start_ns + ahead_ns - known_ns) > _SAME_NS:
                    starts.clear()  # the numbers have begun anew
                starts[number] = start_ns + ahead_ns
                before = number
            for number in sorted(starts)[: max(0, len(starts) - _KEPT)]:
                del starts[number]

    def durations_ns(self, role: str) -> dict[int, int]:
        """By number, from the iteration's begin to the next one's, as far as both are known."""
        starts = self._starts.get(role, {})
        found = {
            number: starts[number + 1] - start_ns
            for number, start_ns in starts.items()
            if number + 1 in starts
        }
        found = {number: ns for number, ns in found.items() if ns > 0}
        usual_ns = median([*found.values()]) if found else 0
        longest_ns = max(_LARGEST_GAP_NS, _LARGEST_GAP * usual_ns)
        return {number: ns for number, ns in found.items() if ns <= longest_ns}

    def median_ns(self, role: str) -> int | None:
        """The median of the latest iterations of a worker."""
        durations_ns = self.durations_ns(role)
        latest = sorted(durations_ns)[-_RECENT:]
        return round(median([durations_ns[number] for number in latest])) if latest else None

    def slowest_ns(self) -> list[tuple[int, int]]:
        """Number and duration of each iteration of the worker for which it took longest."""
        slowest: dict[int, int] = {}
        for role in self._starts:
            for number, duration_ns in self.durations_ns(role).items():
                slowest[number] = max(slowest.get(number, 0), duration_ns)
        return sorted(slowest.items())

    def lateness(self) -> dict[str, Lateness]:
        """By role, over the latest iterations that all workers have begun; {} with one worker."""
        if len(self._starts) < 2:
            return {}
        common = set.intersection(*(set(starts) for starts in self._starts.values()))
        latest = sorted(common)[-_RECENT:]
        if not latest:
            return {}
        last = dict.fromkeys(self._starts, 0)
        behind_ns: dict[str, list[int]] = {role: [] for role in self._starts}
        for number in latest:
            begun_ns = {role: starts[number] for role, starts in self._starts.items()}
            first_ns = min(begun_ns.values())
            last[max(begun_ns, key=lambda role: begun_ns[role])] += 1
            for role, start_ns in begun_ns.items():
                behind_ns[role].append(start_ns - first_ns)
        return {
            role: Lateness(last[role], len(latest), round(median(behind_ns[role])))
            for role in self._starts
        }

    def slowest_median_ns(self) -> int | None:
        """The median of the latest iterations of the worker for which it is largest."""
        medians_ns = (self.median_ns(role) for role in self._starts)
        return max((ns for ns in medians_ns if ns is not None), default=None)


def straggler_of(
    lateness: Mapping[str, Lateness],
    iteration_ns: int | None,
    peers_ns: Mapping[str, int],
    *,
    one_clock: bool,
) -> str | None:
    """The role that the others clearly wait for, if there is one.

    It begins last in two iterations of three, at least ten of them. Besides, either it begins late
    by 2% of an iteration, or each of the others waits longer for answers than it does by as much.
    If the workers have several clocks, only such waits count: a clock may be wrong by more.
    ``peers_ns``: by role, the mean time from acknowledgement to answer, as far as it is known.
    """
    for role, late in lateness.items():
        if late.of < 10 or 3 * late.last < 2 * late.of or not iteration_ns:
            continue
        others_ns = [ns for other, ns in peers_ns.items() if other != role]
        if one_clock and 50 * late.behind_ns >= iteration_ns:
            return role
        known = role in peers_ns and len(others_ns) == len(lateness) - 1
        if known and 50 * (min(others_ns) - peers_ns[role]) >= iteration_ns:
            return role
    return None
