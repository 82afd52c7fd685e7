"""What docs/clusters.md shows, for the tests that do it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from documents import DOCS, blocks

_PAGE = DOCS / "clusters.md"


def file_of_the_page(name: str) -> str:
    """The text of a file that the page shows."""
    (found,) = [each.text for each in blocks(_PAGE) if (each.mark, each.what) == ("file", name)]
    return found


def commands_for(test: str) -> list[str]:
    """The commands of which the page says that ``test``, a file of this folder, runs them."""
    by = f"tests/remote/{test}"
    texts = [each.text for each in blocks(_PAGE) if (each.mark, each.what) == ("run by", by)]
    return "".join(texts).splitlines()


def shown_on(place: str) -> list[str]:
    """The options with which the page starts a job at ``place``, without the job's command."""
    text = "".join(each.text for each in blocks(_PAGE) if each.what == "tests/remote")
    lines = [shlex.split(line) for line in text.splitlines()]
    (found,) = [words for words in lines if words[2:4] == ["--on", place]]
    assert found[-3:] == ["--", "python", "train.py"]
    return found[2:-3]
