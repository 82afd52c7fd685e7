"""Looks at hosts, has them reach each other, and says what is found."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.remote.addresses import root_address
from byteprophet.remote.hosts_file import read_hosts_file
from byteprophet.remote.preflight.findings import Finding, of_all, of_host, of_pairs
from byteprophet.remote.preflight.host import HostFacts
from byteprophet.remote.preflight.mark import marked_results
from byteprophet.remote.preflight.pairs import Meeting, Pair, Peer
from byteprophet.remote.preflight.visits import (
    ByMpirun,
    Here,
    InSlurm,
    OverSsh,
    Visit,
    Visited,
    Visitor,
)
from byteprophet.remote.slurm import allocated_nodes, is_in_allocation

PLACES = ("local", "ssh", "slurm", "mpi")
_PACKAGE = "byteprophet.remote.preflight"
_LOOK_TIMEOUT_S = 90.0
_MEET_TIMEOUT_S = 90.0  # of two hosts
_PER_HOST_S = 0.5  # to reach one more, and to send to it
_SEND_S = 0.25
_KEY_BYTES = 32


@dataclass(frozen=True)
class Report:
    """All findings; and by index, the names of the hosts, and how they reach each other."""

    findings: list[Finding]
    names: list[str]
    pairs: list[Pair]

    @property
    def able(self) -> bool:
        """Whether a job could run there."""
        return all(finding.ok for finding in self.findings if finding.required)


def open_visitor(on: str, hosts: Path | None, interface: str | None) -> Visitor:
    """The hosts that ``--on`` means. Raises ``UserError`` for options that do not fit."""
    if on not in PLACES:
        raise UserError(
            f"--on {on}: choose one of {', '.join(PLACES)}; in other places, byteprophet run looks "
            "before it starts"
        )
    if hosts is not None and on not in ("ssh", "mpi"):
        raise UserError("--hosts: only with --on ssh and --on mpi")
    if on == "ssh":
        if hosts is None:
            raise UserError("--on ssh: name the hosts with --hosts FILE (docs/formats.md)")
        return OverSsh(read_hosts_file(hosts), interface)
    if on == "mpi":
        return ByMpirun(hosts, interface)
    if on == "slurm":
        if not is_in_allocation():
            raise UserError(
                "--on slurm: this process is in no allocation; start it in one: "
                "salloc --nodes=2 byteprophet doctor --on slurm"
            )
        return InSlurm(allocated_nodes(interface))
    return Here(interface)


def preflight(visitor: Visitor, port: int | None) -> Report:
    """Looks at all hosts of ``visitor``. ``port``: that of the root; None: any one.

    Raises ``UserError`` if nothing can be looked at.
    """
    names = [host.name for host in visitor.hosts]
    facts, findings = _look(visitor)
    if not facts:
        return Report(findings, names, [])
    findings += [row for index, each in facts.items() for row in of_host(names[index], each)]
    findings += of_all({names[index]: each for index, each in facts.items()})
    pairs: list[Pair] = []
    try:
        peers = _peers(visitor, facts, port)
        pairs, more = _meet(visitor, facts, peers)
        findings += [*more, *of_pairs(names, pairs)]
    except UserError as error:
        findings.append(Finding("addresses", False, True, str(error), visitor.ask))
    return Report(findings, names, pairs)


def _look(visitor: Visitor) -> tuple[dict[int, HostFacts], list[Finding]]:
    """The facts of the hosts that can be reached, by index, and what is wrong with the others."""
    hosts = visitor.hosts
    told = json.dumps([host.paths for host in hosts])
    visits = visitor.visit(f"{_PACKAGE}.host", told, range(len(hosts)), _LOOK_TIMEOUT_S)
    facts: dict[int, HostFacts] = {}
    findings: list[Finding] = []
    for index, (host, visit) in enumerate(zip(hosts, visits, strict=True)):
        found = _facts(index, host, visit)
        if isinstance(found, Finding):
            findings.append(found)
        else:
            facts[index] = found
    return facts, findings


def _facts(index: int, host: Visited, visit: Visit) -> HostFacts | Finding:
    """What host ``index`` has said of itself, or what is wrong with it."""
    try:
        rows = [row for row in marked_results(visit.output) if row["index"] == index]
        return HostFacts.parse(rows[0]["facts"]) if rows else _unreached(host, visit)
    except (ValueError, TypeError, KeyError):
        found = "its byteprophet has another version"
        return Finding(host.name, False, True, found, "install the same version")


def _unreached(host: Visited, visit: Visit) -> Finding:
    why = visit.error or "it has printed nothing"
    return Finding(host.name, False, True, why, host.todo or "install byteprophet there")


def _peers(visitor: Visitor, facts: dict[int, HostFacts], port: int | None) -> dict[int, Peer]:
    looks = [each.look for each in facts.values()]
    peers = {}
    for index, each in facts.items():
        host = visitor.hosts[index]
        address = host.address or root_address(looks, each.look, host.interface, visitor.ask)
        ports = {"the root's port": port or each.look.ports[0], "any port": each.free_port}
        peers[index] = Peer(host.name, address, ports)
    return peers


def _meet(
    visitor: Visitor, facts: dict[int, HostFacts], peers: dict[int, Peer]
) -> tuple[list[Pair], list[Finding]]:
    """How the hosts reach each other, and which of them could not take part."""
    # Hosts that cannot be reached from here keep their index, and nobody else waits for them.
    meeting = Meeting(
        [peers.get(index, Peer("", "", {})) for index in range(len(visitor.hosts))],
        secrets.token_hex(_KEY_BYTES),
        _SEND_S,
    )
    only: Sequence[int] = sorted(facts)
    limit_s = _MEET_TIMEOUT_S + _PER_HOST_S * len(only)
    visits = visitor.visit(f"{_PACKAGE}.pairs", meeting.to_text(), only, limit_s)
    pairs: list[Pair] = []
    findings: list[Finding] = []
    for index, visit in zip(only, visits, strict=True):
        host = visitor.hosts[index]
        rows = [row for row in marked_results(visit.output) if row["index"] == index]
        if not rows:
            findings.append(_unreached(host, visit))
        elif rows[0]["error"]:
            todo = f"give it another address or port: {visitor.ask}"
            findings.append(Finding(f"{host.name} ports", False, True, rows[0]["error"], todo))
        else:
            pairs += [Pair(**fields) for fields in rows[0]["pairs"]]
    return pairs, findings
