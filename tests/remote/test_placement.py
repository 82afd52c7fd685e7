from __future__ import annotations

from dataclasses import dataclass

import pytest

from byteprophet.errors import UserError
from byteprophet.remote.placement import place, usual_servers, usual_workers


@dataclass(frozen=True)
class Host:
    name: str
    workers: int | None = None
    servers: int | None = None


def placed(
    hosts: list[Host], workers: int, servers: int, controller: bool = False
) -> dict[str, str]:
    found = place(hosts, workers, servers, controller)
    return {unit.name: host.name for unit, host in found.items()}


def test_a_host_each_and_servers_where_there_is_least() -> None:
    hosts = [Host("a"), Host("b"), Host("c")]
    assert placed(hosts, 2, 1, controller=True) == {
        "scheduler": "c", "server-0": "c", "worker-0": "a", "worker-1": "b", "controller": "c",
    }  # fmt: skip
    assert placed(hosts, 3, 2) == {
        "scheduler": "c", "server-0": "c", "server-1": "b", "worker-0": "a", "worker-1": "b",
        "worker-2": "c",
    }  # fmt: skip


def test_workers_are_dealt_out_in_turn() -> None:
    hosts = [Host("a", workers=1), Host("b", workers=3), Host("c", workers=2)]
    names = [placed(hosts, 6, 0)[f"worker-{index}"] for index in range(6)]
    assert names == ["a", "b", "c", "b", "c", "b"]
    unlimited = [Host("a"), Host("b")]
    assert list(placed(unlimited, 5, 0).values()) == ["a", "b", "a", "b", "a"]


def test_servers_go_to_hosts_that_are_for_servers() -> None:
    hosts = [Host("a"), Host("b", workers=0, servers=2), Host("c")]
    found = placed(hosts, 2, 2)
    assert (found["server-0"], found["server-1"], found["scheduler"]) == ("b", "b", "b")
    assert (found["worker-0"], found["worker-1"]) == ("a", "c")
    assert (usual_workers(hosts), usual_servers(hosts)) == (2, 2)
    assert usual_servers([Host("a")]) == 1
    # As in a heterogeneous allocation of Slurm, whose first component takes no worker.
    kept = [Host("a", workers=0), Host("b", workers=0), Host("c", servers=0)]
    assert usual_servers(kept) == 2
    assert set(placed(kept, 1, 2).values()) == {"a", "b", "c"}
    assert usual_servers([*kept, Host("d", servers=1)]) == 1  # the others have no room for servers


def test_a_job_that_has_no_room_is_refused() -> None:
    with pytest.raises(UserError, match="workers 4: the hosts have room for 3"):
        placed([Host("a", workers=1), Host("b", workers=2)], 4, 0)
    with pytest.raises(UserError, match="servers 2: the hosts have room for 1"):
        placed([Host("a"), Host("b", servers=1)], 1, 2)
    with pytest.raises(UserError, match="servers 1: the hosts have room for 0"):
        placed([Host("a", servers=0)], 1, 1)
