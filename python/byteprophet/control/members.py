"""The controller's state for each worker. Only the coordinator uses it.

**Starts of a job.** BytePS' ranks start a job together, and resume it together after ``suspend``,
some perhaps in new processes. Each makes a client then, and counts iterations from there
(``client.py``). So counts of two clients can be compared if they belong to the same start. A new
client belongs to another start than the clients before it if its worker already had one in that
start, or if somebody has said goodbye in it. Messages of a start may arrive before the goodbyes of
the one before it, so a client may be taken for older than it is. It then gets plans like all
others, but the iteration at which they are adopted is computed without it, and nobody waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from byteprophet.control.messages import Hello, Sample
from byteprophet.profile.model import Profile

_SILENT_NS = 10_000_000_000
_PACED = 20  # reports of an iteration: five seconds


@dataclass
class Member:
    """A worker that has said hello. ``peer`` is its connection. ``present``: it has not left.

    ``heard_ns``: when it was heard last, plus the time since then in which nobody could be heard.
    """

    peer: bytes
    hello: Hello
    heard_ns: int
    present: bool = True
    start: int = 0  # which start of the job its client belongs to
    iteration: int = 0
    iteration_ns: int = 0  # when the iteration was reported
    partition_bytes: int = 0  # 0: not reported yet
    busy: float | None = None  # the share of its host's core time that was used lately
    profile: Profile | None = None
    profile_number: int = 0
    samples: Sequence[Sample] = ()
    refused: dict[str, int] = field(default_factory=dict)
    _reached: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_PACED))

    def reach(self, iteration: int, now_ns: int) -> None:
        """The worker reports at ``now_ns`` that ``iteration`` is the current one."""
        if iteration > self.iteration:
            self.iteration, self.iteration_ns = iteration, now_ns
            self._reached.append((iteration, now_ns))

    @property
    def pace_ns(self) -> int | None:
        """Roughly the time of an iteration, by when the last ones were reported; None: unknown."""
        if len(self._reached) < 2:
            return None
        (first, first_ns), (last, last_ns) = self._reached[0], self._reached[-1]
        return (last_ns - first_ns) // (last - first)

    @property
    def name(self) -> str:
        """The role's name."""
        return self.hello.worker

    @property
    def profile_id(self) -> tuple[str, int]:
        """Identifies the profile. Profile numbers start again with each life of the client."""
        return self.hello.client, self.profile_number

    @property
    def settings(self) -> dict[str, int]:
        """The settings with which the worker started, but with the current partition size."""
        now = {"partition_bytes": self.partition_bytes} if self.partition_bytes else {}
        return {**self.hello.settings, **now}

    def is_silent(self, now_ns: int) -> bool:
        """Whether the worker has been silent for so long that it counts as gone."""
        return now_ns - self.heard_ns > _SILENT_NS


class Members:
    """All workers that have ever joined, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Member] = {}
        self._start = 0  # of the client that was made last
        self._has_goodbye = False  # in that start

    def join(self, peer: bytes, hello: Hello, now_ns: int) -> Member:
        """Adds a member for the worker that said ``hello``.

        A worker that comes back keeps its profile and samples until it sends new ones. Profile
        numbers start again with each life of the client.
        """
        before = self._by_name.get(hello.worker)
        is_known = before is not None and before.hello.client == hello.client
        had_one = before is not None and before.start == self._start
        if not is_known and (had_one or self._has_goodbye):
            self._start += 1
            self._has_goodbye = False
        member = Member(peer, hello, now_ns, iteration=hello.iteration, iteration_ns=now_ns)
        member.start = before.start if before is not None and is_known else self._start
        if before is not None:
            member.profile, member.samples = before.profile, before.samples
            if is_known:
                member.profile_number, member.refused = before.profile_number, before.refused
        self._by_name[hello.worker] = member
        return member

    def leave(self, member: Member, *, with_goodbye: bool) -> None:
        """``member`` has left. It is kept for the case that it comes back."""
        member.present = False
        self._has_goodbye |= with_goodbye and member.start == self._start

    @property
    def start(self) -> int:
        """The number of the job's start to which the newest client belongs, from 0."""
        return self._start

    def of(self, peer: bytes, name: str) -> Member | None:
        """The member ``name`` if it is present on the connection ``peer``, else None."""
        member = self._by_name.get(name)
        return member if member is not None and member.present and member.peer == peer else None

    @property
    def count(self) -> int:
        """The number of members, present or not."""
        return len(self._by_name)

    def named(self, name: str) -> Member | None:
        """The member ``name``, present or not; None if it never joined."""
        return self._by_name.get(name)

    @property
    def present(self) -> list[Member]:
        """The members that are present, sorted by name."""
        return sorted((m for m in self._by_name.values() if m.present), key=lambda m: m.name)
