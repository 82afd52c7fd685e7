"""What the scripts here have in common: exit statuses, lines for people, schedulers as given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from rich.console import Console

from byteprophet import _core, schedulers
from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError

_INTERRUPTED = 130


def run_script(main: Callable[[Sequence[str]], None]) -> NoReturn:
    """Run ``main`` and exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    try:
        main(sys.argv[1:])
    except (JobFailed, UserError) as error:
        line = " ".join(str(error).split())
        print(f"byteprophet: error: {line}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except KeyboardInterrupt:
        print("byteprophet: error: interrupted", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    sys.exit(0)


def progress_of(name: str) -> Callable[[str], None]:
    """Says on standard error how far the script ``name`` is."""
    console = Console(stderr=True, highlight=False, markup=False)
    return lambda text: console.print(f"{name}: {text}", soft_wrap=True)


def scheduler_with_settings(text: str) -> tuple[str, dict[str, int]]:
    """``SCHEDULER[:NAME=VALUE,...]``; UserError for what is not name=integer."""
    name, _, settings = text.partition(":")
    try:
        return name, _core.parse_settings(settings)
    except ValueError as error:
        raise UserError(f"settings of {name}: {error}") from None


def scheduler_names(text: str) -> list[str]:
    """The value of ``--schedulers``; UserError for a name that there is not."""
    names = split(text, "--schedulers")
    for name in names:
        schedulers.resolve(name, {})
    return names
