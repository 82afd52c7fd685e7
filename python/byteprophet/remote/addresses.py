"""The address at which the other roles reach the root of a job.

A host has several addresses: loopback, one per network card, bridges of containers. The first of
these rules that leads to an address decides:

    1. the address or the interface that the user named
    2. all roles are on one host: loopback
    3. there is exactly one network of which all hosts have an address, each another one
    4. with --on ssh, the address by which ssh reached the host
    5. the host has exactly one address

Otherwise the user is asked, in one line with what there is. No rule needs a default route.

Roles connect by IPv4, because BytePS does. So addresses are those of IPv4, and a host that has none
is refused.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from byteprophet.errors import UserError
from byteprophet.launcher.checks import LOOPBACK
from byteprophet.remote.look import Look, ipv4_in


def root_address(looks: Sequence[Look], root: Look, interface: str | None, ask: str) -> str:
    """The address of ``root``, one of ``looks``. ``ask``: how users give one.

    Raises ``UserError`` if no rule leads to one, or if a host has no IPv4 address.
    """
    is_one_host = len({look.network for look in looks}) == 1
    if not is_one_host:
        for look in looks:
            _check_ipv4(look)
    if interface is not None:
        return interface_address(root, interface)
    if is_one_host:
        return LOOPBACK
    common = _common_networks(looks)
    if len(common) == 1:
        (network,) = common
        return next(str(each.ip) for each in _addresses(root) if each.network == network)
    reached = ipv4_in(root.reached)
    if reached is not None and not reached.is_loopback:
        return str(reached)
    own = _addresses(root)
    if len(own) == 1:
        return str(own[0].ip)
    there = ", ".join(f"{name} {' '.join(each)}" for name, each in root.interfaces.items())
    raise UserError(f"{root.host}: which address do the other hosts reach? It has {there}: {ask}")


def interface_address(look: Look, interface: str) -> str:
    """The address of ``interface``. Raises ``UserError`` if that host has no such interface."""
    found = look.interfaces.get(interface)
    if not found:
        raise UserError(
            f"interface {interface!r}: {look.host} has {', '.join(look.interfaces) or 'none'}"
        )
    return found[0].partition("/")[0]


def _check_ipv4(look: Look) -> None:
    if _addresses(look):
        return
    has = f"only {' '.join(look.ipv6)}" if look.ipv6 else "no address but loopback's"
    raise UserError(
        f"{look.host}: it has {has}, and roles connect by IPv4: give this host an IPv4 address in "
        "a network of the others"
    )


def _addresses(look: Look) -> list[ipaddress.IPv4Interface]:
    every = (ipaddress.IPv4Interface(text) for each in look.interfaces.values() for text in each)
    return [each for each in every if not each.ip.is_loopback]


def _common_networks(looks: Sequence[Look]) -> set[ipaddress.IPv4Network]:
    """Networks of all hosts in which no two have one address, as bridges of containers do."""
    # Several roles may have looked at one host.
    hosts = {look.network: _addresses(look) for look in looks}
    networks = [{each.network for each in addresses} for addresses in hosts.values()]
    common = set.intersection(*networks)
    return {
        network
        for network in common
        if len({each.ip for own in hosts.values() for each in own if each.network == network})
        >= len(hosts)
    }
