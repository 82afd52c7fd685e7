"""What the controller knows of each worker. Used by the coordinator only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from byteprophet.control.messages import Hello, Sample
from byteprophet.profile.model import Profile

_SILENT_NS = 10_000_000_000


@dataclass
class Member:
    """A worker that has said hello. ``peer`` is its connection; ``present`` ends with it."""

    peer: bytes
    hello: Hello
    heard_ns: int
    present: bool = True
    iteration: int = 0
    iteration_ns: int = 0  # when it was reported
    partition_bytes: int = 0  # 0: not reported yet
    profile: Profile | None = None
    profile_number: int = 0
    samples: Sequence[Sample] = ()
    refused: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The role's name."""
        return self.hello.worker

    @property
    def profile_id(self) -> tuple[str, int]:
        """Tells its profile from earlier ones; numbers start anew with the client's life."""
        return self.hello.client, self.profile_number

    @property
    def settings(self) -> dict[str, int]:
        """As started, but for the partition size, which is today's."""
        now = {"partition_bytes": self.partition_bytes} if self.partition_bytes else {}
        return {**self.hello.settings, **now}

    def is_silent(self, now_ns: int) -> bool:
        """Whether it has not said anything for so long that it counts as gone."""
        return now_ns - self.heard_ns > _SILENT_NS


class Members:
    """By name, and those present by connection."""

    def __init__(self) -> None:
        self._by_name: dict[str, Member] = {}

    def join(self, peer: bytes, hello: Hello, now_ns: int) -> Member:
        """A new member; one that was here before keeps its profile and samples until it says more.

        Profile numbers start anew with the client's life.
        """
        before = self._by_name.get(hello.worker)
        member = Member(peer, hello, now_ns, iteration=hello.iteration, iteration_ns=now_ns)
        if before is not None:
            member.profile, member.samples = before.profile, before.samples
            if before.hello.client == hello.client:
                member.profile_number, member.refused = before.profile_number, before.refused
        self._by_name[hello.worker] = member
        return member

    def of(self, peer: bytes, name: str) -> Member | None:
        """The member ``name`` if it is present on this connection."""
        member = self._by_name.get(name)
        return member if member is not None and member.present and member.peer == peer else None

    def named(self, name: str) -> Member | None:
        """The member of that name, present or not."""
        return self._by_name.get(name)

    @property
    def present(self) -> list[Member]:
        """Those that are here, by name."""
        return sorted((m for m in self._by_name.values() if m.present), key=lambda m: m.name)
