"""Reads sizes such as ``8GiB``."""

from __future__ import annotations

import re

from byteprophet.errors import UserError

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip


def parse_size(text: str, option: str) -> int:
    """A number of bytes. ``UserError`` names ``option``."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-zA-Z]*)", text.strip(), re.ASCII)
    if found is None or found[2].lower() not in _UNITS:
        raise UserError(f"{option} {text}: must be a size such as 8GiB, 500MB or 1000000")
    size_bytes = round(float(found[1]) * _UNITS[found[2].lower()])
    if size_bytes < 1:
        raise UserError(f"{option} {text}: must be at least one byte")
    return size_bytes
