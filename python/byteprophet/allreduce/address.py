"""Chooses the address on which a rank listens, and at which the other ranks reach it.

If gloo's variable GLOO_SOCKET_IFNAME names an interface, it is that interface's address. Otherwise
it is the source address of packets to the host of the rendezvous. If ranks meet in a file, it is
the address to which the host's own name resolves, or else loopback, as in gloo.

Many hosts resolve their own name to a loopback address (127.0.1.1). If ranks on other hosts take
part, such a rank uses the source address of packets to one of them instead.
"""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import psutil

from byteprophet.allreduce.meeting import Meeting
from byteprophet.errors import JobFailed, UserError

LOOPBACK = "127.0.0.1"
SET = "set GLOO_SOCKET_IFNAME, on every host, to the interface of the job's network"


def interface_address(interface: str) -> str:
    """The address of this host's interface called ``interface``, such as "eth0".

    Raises ``UserError`` if the interface does not exist or has no address.
    """
    found = psutil.net_if_addrs().get(interface, [])
    known = [e.address for e in found if e.family in (socket.AF_INET, socket.AF_INET6)]
    if not known:
        raise UserError(f"mesh: interface {interface} has no address here: name another one")
    # Avoid link-local addresses: they contain the interface's name, which differs between hosts.
    return min(known, key=lambda each: (":" in each, _plain(each).is_link_local))


def route_address(towards: str) -> str:
    """The source address of packets from this host to the host ``towards``.

    It is a loopback address if ``towards`` is one. Raises ``UserError`` if there is no route.
    """
    why: str | None = "no address"
    try:
        for family, kind, _, _, place in socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as probe:
                try:
                    probe.connect(place)  # looks up a route, sends nothing
                except OSError as error:
                    why = error.strerror
                    continue
                return str(probe.getsockname()[0])
    except OSError as error:
        why = error.strerror
    raise UserError(f"mesh: no route to {towards}: {why}: check MASTER_ADDR, or the address given")


def named_address() -> str:
    """The address to which this host's own name resolves, or loopback if there is none."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), 0, type=socket.SOCK_STREAM)
    except OSError:
        return LOOPBACK
    for family, kind, _, _, place in found:
        with socket.socket(family, kind) as probe:
            try:
                probe.bind(place)
            except OSError:
                continue  # this is another host's address
            return str(probe.getsockname()[0])
    return LOOPBACK


def is_loopback(address: str) -> bool:
    """Whether only processes of this host (or container) can reach ``address``."""
    return _plain(address).is_loopback


def reached_by_all(
    meeting: Meeting, rank: int, size: int, own: str, *, chosen: bool = False
) -> str:
    """Return ``own``, or a better address if ``own`` is loopback and some ranks are elsewhere.

    Every rank must call this. Ranks with a loopback address wait for all others. Raises
    ``JobFailed`` if a better address is needed and there is none. This happens if the user has
    ``chosen`` the address, or if all ranks elsewhere have loopback addresses, too.
    """
    network = _network()
    meeting.say(f"host/{rank}", f"{network} {own} {socket.gethostname()}")
    if not is_loopback(own):
        return own
    elsewhere = []
    for other in range(size):
        if other != rank:
            its_network, address, host = _told(meeting.hear(f"host/{other}", other), other)
            if its_network != network:
                elsewhere.append((other, address, host))
    if not elsewhere:
        return own
    for _, address, _ in elsewhere:
        if not chosen and not is_loopback(address):
            found = route_address(address)
            if not is_loopback(found):
                return found
    other, address, host = elsewhere[0]
    raise JobFailed(
        f"mesh: rank {rank} on {socket.gethostname()} is reached at {own} only, and rank {other} "
        f"on another host, {host}, at {address}: {SET}"
    )


def _told(said: bytes, rank: int) -> tuple[str, str, str]:
    """Parse what ``rank`` has published: the network, address and name of its host."""
    network, _, rest = said.decode(errors="replace").partition(" ")
    address, _, host = rest.partition(" ")
    try:
        _plain(address)
    except ValueError:
        raise JobFailed(f"mesh: rank {rank} has published {said!r} as its host") from None
    return network, address, host


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    plain = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(plain, "ipv4_mapped", None)
    return plain if mapped is None else mapped


def _network() -> str:
    """A text that identifies this host's or container's network, and so its loopback interface."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        return socket.gethostname()
