"""How long a role or a rank may be silent before it counts as dead.

The heartbeats in BytePS (native/byteps/heartbeat/silence.h) read the same two variables.
"""

from __future__ import annotations

from collections.abc import Mapping

from byteprophet.errors import UserError

_START_TIMEOUT = "BYTEPROPHET_START_TIMEOUT_S"
_STANDARD_S = {"BYTEPROPHET_DEAD_AFTER_S": 12.0, _START_TIMEOUT: 600.0}
_SHORTEST_S = 3.0
_LONGEST_S = 1e6


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
