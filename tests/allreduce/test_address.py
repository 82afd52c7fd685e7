"""Which address of its host a rank listens on. With ranks on several hosts: test_rendezvous.py."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from byteprophet.allreduce.address import (
    interface_address,
    is_loopback,
    named_address,
    reached_by_all,
    route_address,
)
from byteprophet.allreduce.meeting import Meeting
from byteprophet.errors import JobFailed, UserError

dist = pytest.importorskip("torch.distributed")
LONG_S = 60.0


def test_an_interface_by_its_name() -> None:
    assert interface_address("lo") == "127.0.0.1"
    with pytest.raises(UserError, match="interface nowhere0 has no address"):
        interface_address("nowhere0")


def test_the_way_to_a_host() -> None:
    assert route_address("127.0.0.1") == "127.0.0.1"
    assert route_address("localhost") in ("127.0.0.1", "::1")
    with pytest.raises(UserError, match=r"no route to no\.such\.host\.invalid: .*: check MASTER_"):
        route_address("no.such.host.invalid")


def test_a_host_with_two_addresses_of_which_one_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of localhost where there is no IPv6: its first address is ::1 all the same."""
    resolve = socket.getaddrinfo

    def both(*args: Any, **kwargs: Any) -> Any:
        unreachable = (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("100::1%nowhere0", 9, 0, 0))
        return [unreachable, *resolve("127.0.0.1", *args[1:], **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert route_address("two.addresses") == "127.0.0.1"


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("127.0.1.1", "127.0.1.1"),  # what many hosts know of themselves
        ("no.such.host.invalid", "127.0.0.1"),
        ("192.0.2.1", "127.0.0.1"),  # another host's
    ],
)
def test_the_hosts_own_name(monkeypatch: pytest.MonkeyPatch, name: str, address: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    assert named_address() == address


@pytest.mark.parametrize("address", ["127.0.1.1", "::1", "::ffff:127.0.0.1", "::1%lo"])
def test_loopback(address: str) -> None:
    assert is_loopback(address)
    assert not is_loopback("10.0.0.1")
    assert not is_loopback("fe80::1%eth0")


def test_on_one_host_loopback_is_enough() -> None:
    store = dist.HashStore()

    def one(rank: int) -> str:
        return reached_by_all(Meeting(store, "t", LONG_S), rank, 3, f"127.0.0.{rank + 1}")

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(one, range(3))) == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


def test_another_host_that_knows_only_loopback_is_named_at_once() -> None:
    store = dist.HashStore()
    store.set("t/host/1", "elsewhere 127.0.1.1 far")
    began_s = time.monotonic()
    with pytest.raises(JobFailed) as failure:
        reached_by_all(Meeting(store, "t", LONG_S), 0, 2, "127.0.0.1")
    assert str(failure.value) == (
        f"mesh: rank 0 on {socket.gethostname()} is reached at 127.0.0.1 only, and rank 1 on "
        "another host, far, at 127.0.1.1: set GLOO_SOCKET_IFNAME, on every host, to the interface "
        "of the job's network"
    )
    assert time.monotonic() - began_s < LONG_S / 2


def test_what_is_no_host_is_refused() -> None:
    store = dist.HashStore()
    store.set("t/host/1", "somewhere")
    with pytest.raises(JobFailed, match="rank 1 has published b'somewhere' as its host"):
        reached_by_all(Meeting(store, "t", LONG_S), 0, 2, "127.0.0.1")
