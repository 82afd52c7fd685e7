"""Shows the lines of roles that one client has passed on, as if each role had a client."""

from __future__ import annotations

import re

from byteprophet.launcher.spec import Echo

_OF_ROLE = re.compile(r"\[([a-z]+(?:-[0-9.]+)?)\] (.*)", re.DOTALL)


def by_role(echo: Echo) -> Echo:
    """``echo`` for lines in which roles have named themselves: ``[worker-1] ...``."""

    def named(name: str, line: str) -> None:
        found = _OF_ROLE.fullmatch(line)
        if found is None:
            echo(name, line)
        else:
            echo(found[1], found[2])

    return named


def with_role(role: str, line: str) -> str:
    """``line`` of ``role`` as ``by_role`` takes it; some name their role, or its rank, already."""
    is_named = line.startswith((f"[{role}]", f"[{role}."))
    return line if is_named else f"[{role}] {line}"
