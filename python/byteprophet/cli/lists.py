"""Options that hold several values, separated by commas."""

from __future__ import annotations

from byteprophet.errors import UserError


def split(text: str, option: str) -> list[str]:
    """The parts of ``text``, each once, in order; UserError naming ``option`` if there is none."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserError(f"{option}: must name at least one")
    return list(dict.fromkeys(parts))
