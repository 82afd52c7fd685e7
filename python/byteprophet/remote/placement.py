"""Which host runs which roles of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from byteprophet.errors import UserError


class Room(Protocol):
    """A host. How many workers and servers it takes; None: as many as there are."""

    @property
    def workers(self) -> int | None: ...  # noqa: D102

    @property
    def servers(self) -> int | None: ...  # noqa: D102


RoomT = TypeVar("RoomT", bound=Room)


@dataclass(frozen=True)
class Unit:
    """A role of a job; a worker with all of its local ranks."""

    kind: str
    index: int

    @property
    def name(self) -> str:
        """As in file names: "scheduler", "worker-1"."""
        single = self.kind in ("scheduler", "controller")
        return self.kind if single else f"{self.kind}-{self.index}"


def usual_workers(hosts: Sequence[Room]) -> int:
    """The number of workers if the user gives none: what the hosts take, else one each."""
    return sum(1 if host.workers is None else host.workers for host in hosts)


def usual_servers(hosts: Sequence[Room]) -> int:
    """The number of servers if the user gives none.

    It is what the hosts are for, else one on each that takes servers but no worker, else one.
    """
    meant = sum(host.servers or 0 for host in hosts)
    return meant or sum(host.workers == 0 and host.servers is None for host in hosts) or 1


def place(
    hosts: Sequence[RoomT], workers: int, servers: int, controller: bool
) -> dict[Unit, RoomT]:
    """The host of each role, in the order of their start.

    Workers are dealt out in turn. Servers go to hosts that are for servers, or else to those with
    the fewest roles, the last of them first. The scheduler and the controller are on the first
    server's host. Raises ``UserError`` if the hosts have no room for them.
    """
    chosen = list(_deal(hosts, workers))
    if len(chosen) < workers:
        raise UserError(f"workers {workers}: the hosts have room for {len(chosen)}")
    load = Counter(chosen)
    serving: list[int] = []
    meant = [number for number, host in enumerate(hosts) if host.servers]
    for _ in range(servers):
        free = [n for n in meant or range(len(hosts)) if _has_room(hosts[n].servers, serving, n)]
        if not free:
            raise UserError(f"servers {servers}: the hosts have room for {len(serving)}")
        best = min(free, key=lambda n: (load[n], -n))
        serving.append(best)
        load[best] += 1
    placed: dict[Unit, RoomT] = {}
    if serving:
        placed[Unit("scheduler", 0)] = hosts[serving[0]]
    placed |= {Unit("server", index): hosts[number] for index, number in enumerate(serving)}
    placed |= {Unit("worker", index): hosts[number] for index, number in enumerate(chosen)}
    if controller:
        placed[Unit("controller", 0)] = hosts[serving[0]]
    return placed


def _has_room(limit: int | None, serving: Sequence[int], number: int) -> bool:
    return limit is None or serving.count(number) < limit


def _deal(hosts: Sequence[Room], workers: int) -> Iterator[int]:
    """Numbers of hosts for up to ``workers`` workers, as if cards were dealt."""
    left, turn = workers, 0
    while left:
        taking = [n for n, host in enumerate(hosts) if host.workers is None or host.workers > turn]
        if not taking:
            return
        yield from taking[:left]
        left -= min(left, len(taking))
        turn += 1
