"""The commands and files that the documents show, as data, for those who run or check them.

A fenced block of a document is commands if its language is ``sh``. Otherwise it is something to
read, such as output. A comment on the line above a block says more:

    <!-- file: train.py -->                the block is the contents of this file
    <!-- needs: namespaces -->             run these commands only where namespaces are permitted
    <!-- needs: minutes -->                run these commands only where there is time for them
    <!-- needs: run -->                    the runs that they name are there before
    <!-- run by: tests/remote -->          these tests run the commands
    <!-- parse: they take ten minutes -->  do not run these commands, check that they parse
    <!-- printed: on any machine -->       the commands above print each line of this block

All blocks of a page belong to one directory: files are written, and commands run, from the top of
the page to its end. ``shown_commands.py`` lists all commands, with those in other blocks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
DOCS = CHECKOUT / "docs"
PAGES = (
    *sorted(DOCS.glob("*.md")),
    *(CHECKOUT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((CHECKOUT / "launcher").glob("*.md")),
    CHECKOUT / "experiments" / "README.md",
)
"""All that readers are given."""
NEEDS = ("namespaces", "minutes", "run")

_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>file|needs|parse|run by|printed): (?P<what>.+?) -->\n)?"
    r"```(?P<language>[\w{}-]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_BETWEEN = frozenset("();<>|&")
_CALL = r"(?:[A-Z_]+=\S+ )*(?:\S*/)?byteprophet .+"
_LINE = re.compile(rf"^{_CALL}$", re.MULTILINE)
_INDENTED = re.compile(rf"^    ({_CALL})$", re.MULTILINE)
_INLINE = re.compile(r"`(byteprophet [^`]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what the comment above says of it, and its text.

    ``line``: of the comment or the fence; ``text_line``: of the text. ``mark``: "" without comment.
    """

    page: str
    line: int
    text_line: int
    language: str
    mark: str
    what: str
    text: str

    @property
    def is_commands(self) -> bool:
        """Whether the text is commands for a shell."""
        return self.language == "sh" and self.mark != "file"

    @property
    def is_run(self) -> bool:
        """Whether those who run the documents run these commands, where all is that they need."""
        return self.is_commands and self.mark in ("", "needs")

    @property
    def needs(self) -> frozenset[str]:
        """What must be there to run the commands, of ``NEEDS``."""
        return frozenset(self.what.split(", ")) if self.mark == "needs" else frozenset()


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of ``page``, from its top to its end."""
    document = page.read_text(encoding="utf-8")
    return [
        Block(
            page.name,
            document.count("\n", 0, found.start()) + 1,
            document.count("\n", 0, found.start("text")) + 1,
            found["language"],
            found["mark"] or "",
            found["what"] or "",
            found["text"],
        )
        for found in _FENCE.finditer(document)
    ]


def without_blocks(page: Path) -> str:
    """The text of ``page`` with an empty line in place of each line of a block."""
    document = page.read_text(encoding="utf-8")
    return _FENCE.sub(lambda found: "\n" * found[0].count("\n"), document)


def byteprophet_arguments(text: str) -> Iterator[list[str]]:
    """The arguments of every call of byteprophet in ``text``, which is for a shell.

    Raises ``ValueError`` if a quotation does not end.
    """
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not _BETWEEN.issuperset(word):
                words.append(word)
                continue
            while words and _ASSIGNMENT.match(words[0]):
                words.pop(0)
            if words and Path(words[0]).name == "byteprophet":
                yield words[1:]
            words = []


def shown_calls(page: Path) -> Iterator[str]:
    """Every line of ``page`` that calls byteprophet, in a fenced or an indented block."""
    for block in blocks(page):
        text = block.text.replace("\\\n", " ")
        if block.is_commands:
            yield from (line for line in text.splitlines() if any(byteprophet_arguments(line)))
        elif not block.language:
            yield from _LINE.findall(text)
    outside = without_blocks(page).replace("\\\n", " ")
    yield from _INDENTED.findall(outside)


def named_commands(page: Path) -> Iterator[str]:
    """Every command of byteprophet that the text of ``page`` names, perhaps with its options."""
    outside = without_blocks(page)
    yield from (" ".join(text.split()) for text in _INLINE.findall(outside))
