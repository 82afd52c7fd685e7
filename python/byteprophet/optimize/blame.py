"""Says which pass has failed, if another package brought it along."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points

from byteprophet.errors import JobFailed, UserError, first_line

GROUP = "byteprophet.passes"
"""The entry point group under which a package names its passes."""
_OURS = "byteprophet"


@contextmanager
def blaming(each: object) -> Iterator[None]:
    """Raise ``UserError``, which names ``each`` and its package, for what fails inside.

    Passes of the house fail as they do: that is a fault of ours, of which a traceback tells most.
    """
    try:
        yield
    except (UserError, JobFailed):
        raise
    except Exception as error:
        name = getattr(each, "name", None)
        entry = next((known for known in entry_points(group=GROUP) if known.name == name), None)
        if entry is None or _package(entry) == _OURS:
            raise
        raise UserError(f"{text_of(entry)} failed: {error_text(error)}") from error


def text_of(entry: EntryPoint) -> str:
    """The pass of an entry point, for messages: its name, its place and its package."""
    return f"pass {entry.name!r} ({entry.value}, of package {_package(entry)})"


def error_text(error: Exception) -> str:
    """An error of somebody else's code in one line."""
    return f"{type(error).__name__}: {first_line(error)}"


def _package(entry: EntryPoint) -> str:
    return "unknown" if entry.dist is None else entry.dist.name
