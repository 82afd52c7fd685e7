"""Defines when a role counts as dead, and finds reports of dead roles in the output of others.

The heartbeats in BytePS (native/byteps/heartbeat/heartbeat.h) read the same two variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from byteprophet.errors import UserError

_START_TIMEOUT = "BYTEPROPHET_START_TIMEOUT_S"
_STANDARD_S = {"BYTEPROPHET_DEAD_AFTER_S": 12.0, _START_TIMEOUT: 600.0}
_SHORTEST_S = 3.0
_LONGEST_S = 1e6
_VERDICT = re.compile(r"byteprophet: error: (.*): the job cannot go on$")
_ERROR = re.compile(r"(?:byteprophet|slurmstepd(?:-\S+)?): error: (?:\*\*\* )?(.*?)(?: \*\*\*)?$")
_LOST_NODE = re.compile(r"srun: error: (Node failure on .*)$")
_CANCELLED = re.compile(
    r"slurmstepd(?:-\S+)?: error: \*\*\* (STEP \S+ ON \S+ CANCELLED AT .*?) \*\*\*$"
)
_BY_SIGNAL = "ended by signal "


def dead_after_s(environment: Mapping[str, str]) -> float | None:
    """The seconds of silence after which a role counts as dead; None: never.

    Raises ``UserError`` if this or the time limit for the start is not a valid number of seconds.
    """
    limit_s, _ = (_seconds(environment, name) for name in _STANDARD_S)
    return limit_s or None


def start_timeout_s(environment: Mapping[str, str]) -> float | None:
    """The seconds that a role waits for others at the start; None: without a limit.

    Raises ``UserError`` as ``dead_after_s`` does.
    """
    return _seconds(environment, _START_TIMEOUT) or None


def _seconds(environment: Mapping[str, str], name: str) -> float:
    text = environment.get(name, "")
    try:
        value_s = float(text) if text else _STANDARD_S[name]
    except ValueError:
        value_s = -1.0
    if value_s != 0 and not _SHORTEST_S <= value_s <= _LONGEST_S:
        raise UserError(
            f"{name}={text!r}: must be a number of seconds from {_SHORTEST_S:g} to "
            f"{_LONGEST_S:.0f}, or 0 for no limit"
        )
    return value_s


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
