"""Hosts files: where ``byteprophet run --on ssh`` starts roles. docs/formats.md describes them."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, parse_table, read_text

SCHEMA = 1
_COMMON = ("directory", "python", "user", "port", "scratch", "interface")
_OWN = (*_COMMON, "name", "address", "workers", "servers")


@dataclass(frozen=True)
class SshHost:
    """A host that ssh reaches.

    Attributes:
        name: as one gives it to ssh: a name, an address, or an alias of ~/.ssh/config.
        address: at which the other hosts reach it; None: it is found out.
        user, port: of ssh; None: as ssh's configuration says.
        workers, servers: how many it takes; None: as many as there are.
        directory: where workers start.
        python: the interpreter that has byteprophet.
        scratch: where roles keep files until they are fetched.
        interface: of its roles; None: the one that leads to the root.
    """

    name: str
    address: str | None
    user: str | None
    port: int | None
    workers: int | None
    servers: int | None
    directory: str
    python: str
    scratch: str
    interface: str | None


def read_hosts_file(path: Path) -> list[SshHost]:
    """Read ``path``. Raises ``UserError``, which names the file, the host and the field."""
    table = parse_table(read_text(path), str(path))
    try:
        return _hosts(table)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _hosts(table: dict[str, Any]) -> list[SshHost]:
    if not has_schema(table, SCHEMA):
        raise UserError(f"schema: must be {SCHEMA}")
    rows = table.get("host")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise UserError("host: there must be a table [[host]] for each host")
    common = {name: value for name, value in table.items() if name not in ("schema", "host")}
    _refuse_unknown(common, _COMMON)
    hosts = [_own_host(common, row, number) for number, row in enumerate(rows)]
    seen: set[tuple[object, ...]] = set()
    for host in hosts:
        login = (host.name, host.user, host.port)
        if login in seen:
            raise UserError(
                f"host {host.name}: is listed twice; list it once, with workers = 2 for two workers"
            )
        seen.add(login)
    return hosts


def _own_host(common: Mapping[str, Any], row: Mapping[str, Any], number: int) -> SshHost:
    try:
        _refuse_unknown(row, _OWN)
        return _host({**common, **row})
    except UserError as error:
        raise UserError(f"host {row.get('name', number)}: {error}") from None


def _refuse_unknown(table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise UserError(f"{unknown[0]}: there is no such field; there are {', '.join(known)}")


def _host(row: Mapping[str, Any]) -> SshHost:
    name = _text(row, "name")
    if not name or name.startswith("-"):
        raise UserError("name: is needed, as one gives it to ssh")
    address = _text(row, "address")
    if address is not None:
        try:
            ipaddress.IPv4Address(address)
        except ValueError:
            raise UserError(f"address {address!r}: must be an IPv4 address") from None
    port = _whole(row, "port", 1)
    if port is not None and port > 65535:
        raise UserError(f"port {port}: must be between 1 and 65535")
    return SshHost(
        name=name,
        address=address,
        user=_text(row, "user"),
        port=port,
        workers=_whole(row, "workers", 0),
        servers=_whole(row, "servers", 0),
        directory=_text(row, "directory") or str(Path.cwd()),
        python=_text(row, "python") or sys.executable,
        scratch=_text(row, "scratch") or "/tmp",  # noqa: S108 - names in it cannot be guessed
        interface=_text(row, "interface"),
    )


def _text(row: Mapping[str, Any], name: str) -> str | None:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise UserError(f"{name} {value!r}: must be text")
    return value


def _whole(row: Mapping[str, Any], name: str, least: int) -> int | None:
    value = row.get(name)
    if value is not None and (type(value) is not int or value < least):
        raise UserError(f"{name} {value!r}: must be a whole number from {least} on")
    return value
