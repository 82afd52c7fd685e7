"""What the scripts here have in common: exit statuses, one line for an error, --schedulers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from byteprophet import schedulers
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


def scheduler_names(text: str) -> list[str]:
    """The value of ``--schedulers``; UserError for a name that there is not."""
    names = split(text, "--schedulers")
    for name in names:
        schedulers.resolve(name, {})
    return names
