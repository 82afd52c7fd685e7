"""Finds reports of dead roles, and of causes, in the output of others."""

from __future__ import annotations

import re

_VERDICT = re.compile(r"byteprophet: error: (.*): the job cannot go on$")
_ERROR = re.compile(r"(?:byteprophet|slurmstepd(?:-\S+)?): error: (?:\*\*\* )?(.*?)(?: \*\*\*)?$")
_LOST_NODE = re.compile(r"srun: error: (Node failure on .*)$")
_CANCELLED = re.compile(
    r"slurmstepd(?:-\S+)?: error: \*\*\* (STEP \S+ ON \S+ CANCELLED AT .*?) \*\*\*$"
)
_BY_SIGNAL = "ended by signal "


def verdict_in(line: str) -> str | None:
    """The reason in a heartbeat's line that ends the job, or None if ``line`` is not such a line.

    For example: "worker-1 (10.87.0.4) has been silent...".
    """
    found = _VERDICT.search(line)
    return None if found is None else found[1]


def error_in(line: str) -> str | None:
    """The cause in a line with which a role on another host ends, without the path of its log.

    That is the line of ``byteprophet role``, or Slurm's: "STEP 3.0 ON n1 CANCELLED AT ... DUE TO
    TIME LIMIT". A role that a signal ended does not know the cause.
    """
    found = _ERROR.match(line)
    if found is None or found[1].startswith(_BY_SIGNAL):
        return None
    return without_log(found[1])


def without_log(cause: str) -> str:
    """``cause``, which a supervisor has found, without the path of the role's log."""
    return cause.partition("; its log: ")[0]


def lost_node_in(line: str) -> str | None:
    """What Slurm says of a node that has failed; None if ``line`` is not about that."""
    found = _LOST_NODE.match(line)
    return None if found is None else found[1]


def cancelled_in(line: str) -> str | None:
    """Why Slurm ends the step of a role, in its words; None if ``line`` is not about that.

    For example: "STEP 3.0 ON n1 CANCELLED AT 2026-11-28T11:36:57 DUE TO TIME LIMIT".
    """
    found = _CANCELLED.match(line)
    return None if found is None else found[1]
