"""Reads and writes link rates as text: ``1gbit`` is 10^9 bits per second."""

from __future__ import annotations

import re
from decimal import Decimal

from byteprophet.errors import UserError

_UNITS_BPS = {"gbit": 10**9, "mbit": 10**6, "kbit": 10**3, "bit": 1}
_RATE = re.compile(r"(\d+(?:\.\d+)?)(gbit|mbit|kbit|bit)", re.IGNORECASE | re.ASCII)

UNLIMITED = "unlimited"

SLOWEST_BPS = 8
"""``tbf`` counts whole bytes per second; of less nothing would be left as payload, either."""

FASTEST_BPS = 1 << 50
"""A petabit per second: no link is faster, and what is computed from rates fits into 64 bits."""

PAYLOAD_SHARE = 0.9564
"""Of the bytes that ``tbf`` counts: 1448 of each 1514-byte frame."""


def payload_bps(bandwidth_bps: int | None) -> int | None:
    """What a link of this rate carries of payload; None: not limited."""
    return None if bandwidth_bps is None else int(bandwidth_bps * PAYLOAD_SHARE)


def parse_rate(text: str, name: str = "bandwidth") -> int | None:
    """Bits per second, or None for "unlimited".

    Decimal prefixes, as ``tc`` and network cards count. ``name`` is what the error calls the
    value. Raises UserError for anything else, for less than ``SLOWEST_BPS``, for more than
    ``FASTEST_BPS``, and for fractions of a bit per second.
    """
    cleaned = text.strip()
    if cleaned.lower() == UNLIMITED:
        return None
    match = _RATE.fullmatch(cleaned)
    if match:
        # Decimal: 2.3gbit is exactly 2300000000, which binary fractions do not promise.
        rate_bps = Decimal(match[1]) * _UNITS_BPS[match[2].lower()]
        if 0 < rate_bps < SLOWEST_BPS:
            raise UserError(f"{name} {text!r} is too slow: use at least {SLOWEST_BPS}bit")
        if rate_bps > FASTEST_BPS:
            raise UserError(f"{name} {text!r:.100} is too fast: use at most {FASTEST_BPS}bit")
        if rate_bps > 0 and rate_bps == int(rate_bps):
            return int(rate_bps)
    raise UserError(f"{name} {text!r} is not a rate: use e.g. 500mbit, 1gbit, {UNLIMITED}")


def format_rate(rate_bps: int | None) -> str:
    """The shortest text that ``parse_rate`` turns back into ``rate_bps``."""
    if rate_bps is None:
        return UNLIMITED
    for unit, unit_bps in _UNITS_BPS.items():
        if rate_bps >= unit_bps:
            return f"{(Decimal(rate_bps) / unit_bps).normalize():f}{unit}"
    raise ValueError(f"a rate must be positive, not {rate_bps}")
