"""What the parts of this room agree on: hosts, and places that can start roles on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from byteprophet.launcher.tether import Told
from byteprophet.remote.look import Look
from byteprophet.remote.placement import Room, Unit


class AnyHost(Room, Protocol):
    """A host of a job. Two hosts are equal if they are the same one."""

    @property
    def name(self) -> str:
        """As users call it."""

    @property
    def address(self) -> str | None:
        """At which the others reach it; None: it is found out."""

    @property
    def interface(self) -> str | None:
        """Of its roles; None: the one that leads to the root."""


HostT = TypeVar("HostT", bound=AnyHost)


class Places(Protocol[HostT]):
    """A way to start roles on hosts."""

    @property
    def hosts(self) -> Sequence[HostT]:
        """Those that there are."""

    @property
    def is_shared(self) -> bool:
        """Whether the run directory is the same on all of them."""

    @property
    def ask(self) -> str:
        """How a user says which address a host has."""

    def look(self, hosts: Sequence[HostT], paths: Sequence[str]) -> list[Look]:
        """Looks at ``hosts``, in their order; ``paths`` must be there. Raises ``UserError``."""

    def directory(self, host: HostT) -> str:
        """Where workers on ``host`` start."""

    def run_directory(self, unit: Unit, host: HostT, kept: Path) -> Path:
        """Where ``unit`` writes on ``host``. What it writes is in ``kept`` when it has ended."""

    def client(
        self, unit: Unit, host: HostT, told: Told, fetched: Path, kept: Path, temporary: Path
    ) -> list[str]:
        """The command of the client of ``unit``, which tells it ``told``.

        ``fetched`` is its run directory there. Files that the client needs go to ``temporary``.
        """
