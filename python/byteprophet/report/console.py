"""Standard output for tables: as wide as the terminal; in a file or pipe, wide enough."""

from __future__ import annotations

from rich.console import Console


def table_console(width: int = 120) -> Console:
    """Numbers and brackets stay as they are; ``width`` is that of a file."""
    return Console(width=None if Console().is_terminal else width, highlight=False, markup=False)
