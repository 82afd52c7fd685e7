"""When a role counts as dead, and how a role says that another does.

The heartbeats in BytePS (native/byteps/heartbeat/heartbeat.h) read the same two variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from byteprophet.errors import UserError

_STANDARD_S = {"BYTEPROPHET_DEAD_AFTER_S": 12.0, "BYTEPROPHET_START_TIMEOUT_S": 600.0}
_SHORTEST_S = 3.0
_LONGEST_S = 1e6
_VERDICT = re.compile(r"byteprophet: error: (.*): the job cannot go on$")


def dead_after_s(environment: Mapping[str, str]) -> float | None:
    """After how many seconds of silence a role counts as dead; None: never.

    UserError if this or the time limit of the start is not a number of seconds.
    """
    limit_s, _ = (_seconds(environment, name) for name in _STANDARD_S)
    return limit_s or None


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
    """What a heartbeat's line says ends the job: "worker-1 (10.87.0.4) has been silent..."."""
    found = _VERDICT.search(line)
    return None if found is None else found[1]
