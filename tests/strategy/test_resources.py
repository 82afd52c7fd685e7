"""Resource files: what is read is what was written, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.job import Host
from byteprophet.network import payload_bps
from byteprophet.strategy.builders import build
from byteprophet.strategy.resources import (
    HostResources,
    Resources,
    check_roles,
    on_resources,
    read_resources,
    with_host,
    write_resources,
)

from .jobs import COSTS, mesh_job, served_job

RATE_BPS = 400_000_000
TEXT = """
schema = 1
up = "1gbit"
down = "500mbit"
delay_ns = 100000

[[host]]
name = "a"
devices = 8

[[host]]
name = "b"
up = "unlimited"
burst_bytes = 1000
cores = 4

[[host]]
name = "s"
servers = 1
"""


def read(text: str, path: Path) -> Resources:
    path.write_text(text, encoding="utf-8")
    return read_resources(path)


def test_a_file_is_read(tmp_path: Path) -> None:
    found = read(TEXT, tmp_path / "cluster.toml")
    assert [host.name for host in found.workers] == ["a", "b"]
    assert [host.name for host in found.servers] == ["s"]
    assert found.workers[0] == HostResources("a", 1, 0, 10**9, 5 * 10**8, None, 8)
    assert found.workers[1].up_bps is None
    assert found.workers[1].cores == 4
    assert found.workers[1].link == Host(0, payload_bps(5 * 10**8) or 0, 1000)
    assert (found.delay_ns, found.message_cost_ns) == (100_000, None)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    found = read(TEXT, tmp_path / "cluster.toml")
    write_resources(tmp_path / "again.toml", found)
    again = read_resources(tmp_path / "again.toml")
    assert again == found
    assert again.digest == found.digest
    other = Resources(found.hosts[:2], found.delay_ns)
    assert other.digest != found.digest


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("schema = 2", "schema: must be 1"),
        ("schema = 1", "there must be a table [[host]]"),
        ("schema = 1\nhosts = 3\n[[host]]\nname = 'a'", "hosts: there is no such field"),
        ("schema = 1\n[[host]]\nrate = 3", "host 0: rate: there is no such field"),
        ("schema = 1\n[[host]]\nup = '1gbit'", "host 0: name: is needed"),
        ("schema = 1\n[[host]]\nname = 'a'\nup = 3", "host a: up 3: must be text"),
        ("schema = 1\n[[host]]\nname = 'a'\nup = 'fast'", "host a: up 'fast' is not a rate"),
        ("schema = 1\n[[host]]\nname = 'a'\nworkers = 2", "workers 2: roles of one host share"),
        ("schema = 1\n[[host]]\nname = 'a'\ncores = -1", "cores -1: must be a whole number"),
        ("schema = 1\n[[host]]\nname = 'a'\n[[host]]\nname = 'a'", "there are two of this name"),
    ],
)
def test_what_is_refused(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    with pytest.raises(UserError) as refused:
        read(text, path)
    assert says in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_job_moves_to_other_links() -> None:
    def hosts(workers: int, servers: int) -> Resources:
        rates = [RATE_BPS // (1 + number) for number in range(workers)]
        found = [HostResources(f"w{n}", 1, 0, rate, rate) for n, rate in enumerate(rates)]
        found += [HostResources(f"s{n}", 0, 1, RATE_BPS, RATE_BPS) for n in range(servers)]
        return Resources(tuple(found), message_cost_ns=7)

    moved = on_resources(mesh_job([RATE_BPS] * 3), hosts(3, 2))
    assert moved.cluster.workers[2].up_bps == payload_bps(RATE_BPS // 3)
    assert moved.servers == 0
    assert moved.cluster.costs.message_cost_ns == 7
    assert moved.cluster.costs.delay_ns == COSTS.delay_ns
    served = served_job([RATE_BPS] * 3, [RATE_BPS])
    assert on_resources(served, hosts(3, 2)).servers == 2
    cluster = replace(served.cluster, mesh_costs=replace(COSTS, delay_ns=9))
    mixed = on_resources(build("mixed", replace(served, cluster=cluster)), hosts(3, 2))
    assert mixed.servers == 2
    assert mixed.cluster.costs == replace(COSTS, message_cost_ns=7)
    assert mixed.cluster.mesh_costs == replace(COSTS, delay_ns=9, message_cost_ns=7)
    with pytest.raises(UserError, match=r"have 2 worker\(s\), and the job has 3"):
        on_resources(served, hosts(2, 1))
    with pytest.raises(UserError, match="have no server"):
        on_resources(served, hosts(3, 0))


def test_roles_that_would_share_a_link_are_refused() -> None:
    both = HostResources("both", 1, 1)
    with pytest.raises(UserError, match="'both' takes a worker and a server"):
        check_roles(Resources((both,)))
    with pytest.raises(UserError, match="no host that takes a worker"):
        check_roles(Resources((HostResources("s", 0, 1),)))


def test_a_host_takes_the_place_of_its_name() -> None:
    first = with_host(None, HostResources("a", cores=2))
    both = with_host(first, HostResources("b", 0, 1))
    changed = with_host(both, HostResources("b", cores=16))
    assert [host.name for host in changed.hosts] == ["a", "b"]
    assert changed.hosts[1] == HostResources("b", 0, 1, cores=16)


def test_doctor_writes_this_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.toml"
    for _ in range(2):  # the second time, it takes its own place
        assert run_cli(["doctor", "--resources", str(path)]) == 0
    (host,) = read_resources(path).hosts
    assert host.cores is not None
    assert host.cores >= 1
    assert host.workers == 1
    assert run_cli(["strategy", "resources", str(path)]) == 0
    assert host.name in capsys.readouterr().out
