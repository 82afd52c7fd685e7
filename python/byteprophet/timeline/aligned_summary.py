"""Summarises the clocks of a job's machines, as JSON and as warnings."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import Any

from byteprophet.errors import one_line
from byteprophet.timeline.aligned import Aligned, Machine


def clocks_json(aligned: Aligned) -> dict[str, Any]:
    """Plain data, as ``byteprophet timeline --json`` has it under ``clocks`` (docs/formats.md)."""
    found = aligned.alignment
    return {
        "reference": found.reference if found else None,
        "reference_ns": found.reference_ns if found else None,
        "machines": [_machine(machine, aligned) for machine in aligned.machines],
        "contradictions": [asdict(each) for each in found.contradictions] if found else [],
    }


def _machine(machine: Machine, aligned: Aligned) -> dict[str, Any]:
    who = {"machine": machine.name, "roles": list(machine.roles)}
    found = aligned.alignment
    if len(aligned.machines) == 1:
        return {**who, "offset_ns": 0, "wall_ns": 0, "drift_ppm": 0.0, "interval_ns": [0, 0]}
    if found is None or machine in aligned.apart:
        unknown = ("offset_ns", "wall_ns", "drift_ppm", "interval_ns")
        return {**who, **dict.fromkeys(unknown)}
    clock = found.clocks[machine.name]
    walls_ns = {each.name: each.wall_ns for each in aligned.machines}
    return {
        **who,
        "offset_ns": clock.offset_ns,
        "wall_ns": clock.offset_ns + machine.wall_ns - walls_ns[found.reference],
        "drift_ppm": clock.drift_ppm,
        "interval_ns": list(clock.interval_ns),
    }


def warn_of_clocks(aligned: Aligned) -> None:
    """Prints the warnings of ``clock_warnings`` to standard error."""
    for line in clock_warnings(aligned):
        print(f"byteprophet: warning: {one_line(line)}", file=sys.stderr)


def clock_warnings(aligned: Aligned) -> list[str]:
    """Reasons to doubt times of different machines, one line each.

    One line describes the worst contradiction; another names the machines that are not aligned.
    """
    lines = []
    if aligned.alignment and aligned.alignment.contradictions:
        worst, *others = aligned.alignment.contradictions
        names = {machine.name: f"{machine}" for machine in aligned.machines}
        named = replace(
            worst,
            cause_machine=names[worst.cause_machine],
            effect_machine=names[worst.effect_machine],
        )
        more = f" (as do {len(others)} other pairs of machines)" if others else ""
        lines.append(f"{named}{more}")
    if aligned.apart:
        who = "; ".join(f"{machine}" for machine in aligned.apart)
        lines.append(
            f"the clocks of {who} are not aligned: no recorded messages connect them with the "
            "others, so their wall clocks are trusted"
        )
    return lines
