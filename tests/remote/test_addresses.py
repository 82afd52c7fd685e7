from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.network import Cluster, HostSpec
from byteprophet.remote.addresses import root_address
from byteprophet.remote.look import MARK, Look, check_look, look, parse_looks

from ..namespaces import why_not_permitted

ASK = "give --interface"
DOCKER = {"docker0": ["172.17.0.1/16"]}


def host(name: str, reached: str = "", ipv6: tuple[str, ...] = (), **interfaces: list[str]) -> Look:
    every = {"lo": ["127.0.0.1/8"], **interfaces}
    return Look("1", name, "", -1, name, reached, every, list(ipv6), [20000, 20001], [])


def test_the_one_network_of_all_hosts_is_taken() -> None:
    looks = [host("a", eth0=["10.0.0.1/24"], **DOCKER), host("b", eth1=["10.0.0.2/24"], **DOCKER)]
    assert root_address(looks, looks[0], None, ASK) == "10.0.0.1"
    assert root_address(looks, looks[1], None, ASK) == "10.0.0.2"


def test_roles_of_one_host_use_loopback() -> None:
    one = host("a", eth0=["10.0.0.1/24"], ib0=["10.1.0.1/24"])
    assert root_address([one, one], one, None, ASK) == "127.0.0.1"


def test_the_named_interface_is_taken() -> None:
    two = {"eth0": ["10.0.0.1/24"], "ib0": ["10.1.0.1/24"]}
    looks = [host("a", **two), host("b", eth0=["10.0.0.2/24"])]
    assert root_address(looks, looks[0], "ib0", ASK) == "10.1.0.1"
    with pytest.raises(UserError, match="interface 'ib1': a has lo, eth0, ib0"):
        root_address(looks, looks[0], "ib1", ASK)


def test_hosts_in_different_networks() -> None:
    """Behind a router, the way by which ssh came is a way for the others, too."""
    looks = [
        host("a", reached="10.0.0.1", eth0=["10.0.0.1/24"], ib0=["10.1.0.1/24"]),
        host("b", eth0=["10.9.0.1/24"]),
    ]
    assert root_address(looks, looks[0], None, ASK) == "10.0.0.1"
    assert root_address(looks, looks[1], None, ASK) == "10.9.0.1"


def test_the_user_is_asked_where_nothing_decides() -> None:
    two = {"eth0": ["10.0.0.{}/24"], "ib0": ["10.1.0.{}/24"]}
    looks = [
        host(name, **{card: [text.format(n) for text in texts] for card, texts in two.items()})
        for n, name in ((1, "a"), (2, "b"))
    ]
    says = (
        "^a: which address do the other hosts reach\\? It has lo 127.0.0.1/8, eth0 10.0.0.1/24, "
        "ib0 10.1.0.1/24: give --interface$"
    )
    with pytest.raises(UserError, match=says):
        root_address(looks, looks[0], None, ASK)


def test_only_addresses_of_ipv4_are_taken() -> None:
    """ssh may have come by IPv6, which roles do not use."""
    near, far = ["10.0.0.1/24"], ["10.9.0.1/24"]
    by_ipv6 = host("a", reached="fd00::1", ipv6=("fd00::1",), eth0=near)
    assert root_address([by_ipv6, host("b", eth0=far)], by_ipv6, None, ASK) == "10.0.0.1"
    mapped = host("a", reached="::ffff:10.0.0.1", eth0=near, ib0=["10.1.0.1/24"])
    assert root_address([mapped, host("b", eth0=far)], mapped, None, ASK) == "10.0.0.1"


@pytest.mark.parametrize("interface", [None, "eth0"])
@pytest.mark.parametrize(
    ("ipv6", "has"), [(("fd00::2", "fd01::2"), "only fd00::2 fd01::2"), ((), "no address but loo")]
)
def test_a_host_without_ipv4_is_refused(
    ipv6: tuple[str, ...], has: str, interface: str | None
) -> None:
    looks = [host("a", eth0=["10.0.0.1/24"]), host("b", ipv6=ipv6)]
    for root in looks:
        with pytest.raises(UserError, match=f"^b: it has {has}") as refused:
            root_address(looks, root, interface, ASK)
        assert "roles connect by IPv4: give this host an IPv4 address" in str(refused.value)


@pytest.mark.skipif(why_not_permitted() is not None, reason=str(why_not_permitted()))
def test_a_role_without_a_route_asks_for_an_interface(tmp_path: Path) -> None:
    """On a host with a network card, but neither a network of the root nor a default route."""
    job = tmp_path / "job.toml"
    job.write_text(
        'schema = 1\nroot = "10.88.0.9:9000"\ncommand = ["true"]\nworkers = 2\nservers = 0\n'
    )
    with Cluster([HostSpec("alone")]) as cluster:
        role = [sys.executable, "-m", "byteprophet", "role", "worker", "--job", str(job)]
        done = subprocess.run(
            cluster.hosts[0].enter([*role, "--index", "1"], tmp_path),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "byteprophet: error: root 10.88.0.9: this host has no route to it (Network is "
        "unreachable): name an interface with --interface\n"
    )


def test_this_host_can_look_at_itself() -> None:
    here = look(["/", "/nowhere"])
    assert here.interfaces["lo"] == ["127.0.0.1/8"]
    assert len(set(here.ports)) == 2
    assert here.missing == ["/nowhere"]
    with pytest.raises(UserError, match="host x: /nowhere: there is no such file"):
        check_look(here, "host x")


@pytest.mark.parametrize(
    ("connection", "variables", "reached"),
    [
        ("198.51.100.7 50022 127.0.0.1 22", {}, "127.0.0.1"),
        ("198.51.100.7 50022 ::ffff:127.0.0.1 22", {}, "127.0.0.1"),
        ("198.51.100.7 50022 192.0.2.1 22", {}, ""),
        ("198.51.100.7 50022 127.0.0.1 22", {"SLURM_PROCID": "0"}, ""),
        ("198.51.100.7 50022 elsewhere 22", {}, ""),
    ],
    ids=["here", "mapped", "login-node", "srun", "no-address"],
)
def test_only_an_ssh_connection_to_this_host_counts(
    monkeypatch: pytest.MonkeyPatch, connection: str, variables: dict[str, str], reached: str
) -> None:
    """Not one to the login node, whose environment sbatch, salloc and mpirun hand on."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"SSH_CONNECTION": connection, **variables}.items():
        monkeypatch.setenv(name, value)
    assert look([]).reached == reached


def test_looks_are_found_between_other_lines_and_other_versions_refused() -> None:
    assert parse_looks("welcome\n", "host x") == []
    with pytest.raises(UserError, match="host x: its byteprophet has another version"):
        parse_looks(f'welcome\n{MARK}{{"version": "0"}}\n', "host x")
