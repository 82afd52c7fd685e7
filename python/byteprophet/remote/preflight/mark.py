"""How programs on hosts hear what they need, and how their result is found in what they print."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from byteprophet.input_files import parse_json, whole_number
from byteprophet.remote.look import rank_in

MARK = "byteprophet-preflight "
"""Before the JSON: a login script or a launcher may print other lines."""
_STANDARD_INPUT = "-"


def own_index(text: str) -> int:
    """The index of this host: ``text``, or the number that mpirun gave this process."""
    number = whole_number(text)
    return rank_in(dict(os.environ)) if number is None else number


def read_told(source: str) -> str:
    """The text in the file ``source``; "-": from standard input."""
    if source == _STANDARD_INPUT:
        return sys.stdin.read()
    return Path(source).read_text(encoding="utf-8")


def marked_results(output: str) -> list[dict[str, Any]]:
    """The objects in the marked lines of ``output``. Raises ``ValueError`` for what is not JSON."""
    found = []
    for line in output.splitlines():
        _, mark, text = line.partition(MARK)
        if mark:
            value = parse_json(text)
            if not isinstance(value, dict):
                raise ValueError("not an object")
            found.append(value)
    return found


def tell_marked(result: dict[str, Any]) -> None:
    """Print ``result`` for ``marked_results``, in one write: others print at the same time."""
    print(f"{MARK}{json.dumps(result)}\n", end="", flush=True)
