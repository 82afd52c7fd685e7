from __future__ import annotations

import pytest

from byteprophet.errors import UserError
from byteprophet.remote.addresses import root_address
from byteprophet.remote.look import MARK, Look, check_look, look, parse_looks

ASK = "give --interface"
DOCKER = {"docker0": ["172.17.0.1/16"]}


def host(name: str, reached: str = "", **interfaces: list[str]) -> Look:
    every = {"lo": ["127.0.0.1/8"], **interfaces}
    return Look("1", name, "", -1, name, reached, every, [20000, 20001], [])


def test_the_one_network_of_all_hosts_is_taken() -> None:
    looks = [host("a", eth0=["10.0.0.1/24"], **DOCKER), host("b", eth1=["10.0.0.2/24"], **DOCKER)]
    assert root_address(looks, looks[0], None, ASK) == "10.0.0.1"
    assert root_address(looks, looks[1], None, ASK) == "10.0.0.2"


def test_roles_of_one_host_use_loopback() -> None:
    one = host("a", eth0=["10.0.0.1/24"], ib0=["10.1.0.1/24"])
    assert root_address([one, one], one, None, ASK) == "127.0.0.1"


def test_the_named_interface_is_taken() -> None:
    looks = [host("a", eth0=["10.0.0.1/24"], ib0=["10.1.0.1/24"]), host("b")]
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


def test_this_host_can_look_at_itself() -> None:
    here = look(["/", "/nowhere"])
    assert here.interfaces["lo"] == ["127.0.0.1/8"]
    assert len(set(here.ports)) == 2
    assert here.missing == ["/nowhere"]
    with pytest.raises(UserError, match="host x: /nowhere: there is no such file"):
        check_look(here, "host x")


def test_looks_are_found_between_other_lines_and_other_versions_refused() -> None:
    assert parse_looks("welcome\n", "host x") == []
    with pytest.raises(UserError, match="host x: its byteprophet has another version"):
        parse_looks(f'welcome\n{MARK}{{"version": "0"}}\n', "host x")
