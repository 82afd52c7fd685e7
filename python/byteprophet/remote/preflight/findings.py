"""What is good, what is not, and what to do about it. Pure functions of what hosts have said."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from byteprophet.errors import UserError
from byteprophet.remote.look import check_look
from byteprophet.remote.preflight.host import NO_LIMIT, HostFacts
from byteprophet.remote.preflight.pairs import Pair

# A worker keeps its gradients there: 1 GiB is room for 250 million parameters of one worker.
SHM_BYTES = 1 << 30
_FEWEST = {"open files": 256, "processes": 256}
_USUAL = {"open files": 4096, "processes": 4096}
_OPTIONS = {"open files": "-n", "processes": "-u"}
_CLOCKS_S = 0.1  # clocks that anybody sets agree better
_SLOW = 0.5  # of the median
_MOST_LINES = 64  # of pairs that are well


@dataclass(frozen=True)
class Finding:
    """``required``: for any job; ``todo``: one line that says how to get what is missing."""

    name: str
    ok: bool
    required: bool
    found: str
    todo: str = ""


def of_host(name: str, facts: HostFacts) -> list[Finding]:
    """What is found on one host alone."""
    look = facts.look
    versions = f"byteprophet {look.version}, Python {facts.python}, torch {facts.torch or 'none'}"
    reached = f"{versions}, {facts.cores} cores"
    try:
        check_look(look, name)
        first = Finding(name, True, True, reached)
    except UserError as error:
        why = str(error).removeprefix(f"{name}: ")
        todo = "install the same version" if look.missing == [] else "make it, or change the path"
        first = Finding(name, False, True, why, todo)
    return [first, _shared_memory(name, facts), *(_limit(name, kind, facts) for kind in _FEWEST)]


def _shared_memory(name: str, facts: HostFacts) -> Finding:
    size_bytes = facts.shared_memory_bytes
    ok = size_bytes >= SHM_BYTES
    todo = (
        "" if ok else "mount -o remount,size=4g /dev/shm (in a container: docker run --shm-size=4g)"
    )
    text = f"{size_bytes / 2**30:.1f} GiB free" if size_bytes else "there is none"
    return Finding(f"{name} /dev/shm", ok, size_bytes == 0, text, todo)


def _limit(name: str, kind: str, facts: HostFacts) -> Finding:
    value = facts.limits.get(kind, NO_LIMIT)
    ok = value == NO_LIMIT or value >= _USUAL[kind]
    todo = "" if ok else f"ulimit {_OPTIONS[kind]} {_USUAL[kind]}, or /etc/security/limits.conf"
    text = "no limit" if value == NO_LIMIT else str(value)
    required = value != NO_LIMIT and value < _FEWEST[kind]
    return Finding(f"{name} limit of {kind}", ok, required, text, todo)


def of_all(hosts: Mapping[str, HostFacts]) -> list[Finding]:
    """What must be the same on all hosts."""
    return [_checksums(hosts), _same_versions(hosts)]


def _checksums(hosts: Mapping[str, HostFacts]) -> Finding:
    first, *others = hosts
    files = hosts[first].checksums
    for other in others:
        theirs = hosts[other].checksums
        differing = sorted({n for n in files | theirs if files.get(n) != theirs.get(n)})
        if differing:
            return Finding(
                "plug-ins",
                False,
                True,
                f"{differing[0]} is not the same on {first} and {other}",
                "install the same wheel, or the same image, on all hosts",
            )
    where = "here" if not others else f"the same on all {len(hosts)} hosts"
    return Finding("plug-ins", True, True, f"{len(files)} native files, {where}")


def _same_versions(hosts: Mapping[str, HostFacts]) -> Finding:
    of = {name: f"Python {facts.python}, torch {facts.torch}" for name, facts in hosts.items()}
    first = next(iter(of))
    other = next((name for name, text in of.items() if text != of[first]), None)
    if other is None:
        return Finding("versions", True, False, of[first])
    found = f"{first} has {of[first]}; {other} has {of[other]}"
    return Finding("versions", False, False, found, "install the same, so that results are")


def of_pairs(names: Sequence[str], pairs: Sequence[Pair]) -> list[Finding]:
    """What is found between hosts: ports, clocks, and bandwidth. ``names`` are by index."""
    failed = [_failure(names, pair, purpose) for pair in pairs for purpose in pair.errors]
    reached = [pair for pair in pairs if pair.round_trip_ns is not None]
    return [*failed, *_clocks(names, reached), *_links(names, reached)]


def _failure(names: Sequence[str], pair: Pair, purpose: str) -> Finding:
    return Finding(
        f"{_arrow(names, pair)}, {purpose}",
        False,
        True,
        pair.errors[purpose],
        "let TCP ports from 20000 on pass between the hosts (firewall), or name another network "
        "with --interface",
    )


def _arrow(names: Sequence[str], pair: Pair) -> str:
    return f"{names[pair.source]} -> {names[pair.target]}"


def _clocks(names: Sequence[str], pairs: Sequence[Pair]) -> list[Finding]:
    """Clocks relative to the first host's. Jobs do not need them, but people read logs."""
    of = {pair.target: pair for pair in pairs if pair.source == 0 and pair.target != 0}
    if not of:
        return []
    found = []
    for target, pair in sorted(of.items()):
        assert pair.offset_ns is not None
        offset_s = pair.offset_ns / 1e9
        if abs(offset_s) > _CLOCKS_S:
            side = "ahead of" if offset_s > 0 else "behind"
            text = f"{abs(offset_s):.1f} s {side} that of {names[0]}"
            todo = f"set it: timedatectl set-ntp true on {names[target]}"
            found.append(Finding(f"{names[target]} clock", False, False, text, todo))
    worst_ms = max(abs(pair.offset_ns or 0) for pair in of.values()) / 1e6
    ok = Finding("clocks", True, False, f"within {worst_ms:.1f} ms of that of {names[0]}")
    return found or [ok]


def _links(names: Sequence[str], pairs: Sequence[Pair]) -> list[Finding]:
    rated = [pair for pair in pairs if pair.bits_per_s is not None]
    if not rated:
        return []
    rates = [pair.bits_per_s or 0.0 for pair in rated]
    median = statistics.median(rates)
    findings = []
    for pair, rate in sorted(zip(rated, rates, strict=True), key=lambda row: row[1]):
        ok = rate >= _SLOW * median
        trip_ms = (pair.round_trip_ns or 0) / 1e6
        text = f"{_rate(rate)}, round trip {trip_ms:.2f} ms"
        todo = "" if ok else f"the median is {_rate(median)}: look at its cable, card and switch"
        findings.append(Finding(_arrow(names, pair), ok, False, text, todo))
    slow = [each for each in findings if not each.ok]
    well = [each for each in findings if each.ok]
    if len(well) > _MOST_LINES:
        count = len(well) - _MOST_LINES
        well = well[:_MOST_LINES]
        well.append(Finding("other pairs", True, False, f"{count}, all of them faster"))
    return [*slow, *well]


def _rate(bits_per_s: float) -> str:
    if bits_per_s >= 1e9:
        return f"{bits_per_s / 1e9:.2f} Gbit/s"
    return f"{bits_per_s / 1e6:.0f} Mbit/s"
