"""Tables on standard output, as wide as the terminal; progress on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from byteprophet.errors import printable


class PlainConsole(Console):
    """Shows texts as they are: names in files of others may be anything, and must not steer it.

    Letters that are not printable become escapes, in cells and titles of tables, too. Only strings
    that are given to ``print`` and texts of ``lines_text`` may have several lines.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """As that of ``Console``."""
        texts = (lines_text(one.split("\n")) if isinstance(one, str) else one for one in objects)
        super().print(*texts, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """As that of ``Console``, which calls it for all strings within what it prints."""
        return super().render_str(printable(text), **options)


def lines_text(lines: Iterable[str], style: str = "") -> Text:
    """Lines for a ``PlainConsole``, without what would steer the terminal."""
    return Text("\n".join(map(printable, lines)), style)


def table_console(width: int = 120) -> Console:
    """For tables. Numbers and brackets stay as they are; ``width`` is that of a file or pipe."""
    return PlainConsole(width=None if Console().is_terminal else width)


def facts_table(title: str) -> Table:
    """A table without a header: what a fact is, its value, a remark."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    return table


def progress_of(name: str) -> Callable[[str], None]:
    """Says on standard error how far the command ``name`` is, if it can be written there."""
    console = PlainConsole(stderr=True)

    def say(text: str) -> None:
        with contextlib.suppress(OSError):
            console.print(f"{name}: {text}", soft_wrap=True)

    return say


@contextlib.contextmanager
def progress_bar(name: str, what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows how far the command ``name`` is: of ``what``, so many of so many are done.

    On a terminal, it is a bar with the time that is left. Elsewhere, it is ten lines in all.
    """
    console = PlainConsole(stderr=True)
    if console.is_terminal:
        columns = (TextColumn(f"{name}:"), BarColumn(), MofNCompleteColumn(), TextColumn(what))
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
            task = bar.add_task(name)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    say, tenths = progress_of(name), 0

    def told(done: int, total: int) -> None:
        nonlocal tenths
        if done and 10 * done // total > tenths:
            tenths = 10 * done // total
            say(f"{done} of {total} {what}")

    yield told


def ms_text(time_ns: int) -> str:
    """A time in milliseconds."""
    return f"{time_ns / 1e6:.1f} ms"


def shares_text(parts: Mapping[str, float]) -> str:
    """Shares of a whole; those below half a percent are left out."""
    return ", ".join(f"{part} {share:.0%}" for part, share in parts.items() if share >= 0.005)
