"""How the scripts keep their results: JSON for people and for diffs.

Indented, but a list of numbers is one line however long it is: a series changes as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.input_files import read_json
from byteprophet.whole_files import write_whole


def earlier_results(path: Path, **header: Any) -> Any:
    """The results in the file at ``path``; None if there is none yet.

    Raises ``UserError`` unless the file says of each name in ``header`` what is given here: results
    of others are not overwritten, and not mixed with.
    """
    if not path.exists():
        return None
    content = read_json(path)
    for name, value in header.items():
        was = content.get(name) if isinstance(content, dict) else None
        if was != value:
            said = f"was measured with the {name} {was}, not {value}"
            raise UserError(f"{path}: {said}: choose another --out or remove it")
    return content.get("results")


def write_results(path: Path, content: Mapping[str, Any]) -> None:
    """The file at ``path``, whole or not at all; makes its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, results_text(content) + "\n")


def results_text(value: Any, depth: int = 0) -> str:
    """``value`` as JSON, whose first line is already ``depth`` deep."""
    line = "\n" + " " * (depth + 1)
    end = "\n" + " " * depth
    if isinstance(value, Mapping) and value:
        texts = (f"{json.dumps(str(k))}: {results_text(v, depth + 1)}" for k, v in value.items())
        return "{" + line + f",{line}".join(texts) + end + "}"
    if isinstance(value, list | tuple) and any(isinstance(v, _TALL) for v in value):
        return "[" + line + f",{line}".join(results_text(v, depth + 1) for v in value) + end + "]"
    return json.dumps(value)


_TALL = (str, Mapping, list, tuple)
