"""Lists the commands of all pages, and who runs each of them: python tools/shown_commands.py.

Blocks for a shell say who runs them (documents.py). A command in any other block, fenced without a
language or indented, is only parsed or named; ``_ONLY_PARSED`` says why, by page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from documents import CHECKOUT, DOCS, PAGES, Block, blocks, without_blocks

_OF_READERS = "it names runs, files or hosts that readers have; {} run others"
_ONLY_PARSED: Mapping[str, str] = {
    "compression.md": _OF_READERS.format("tests/strategy and tests/torch/test_compressed.py"),
    "control.md": _OF_READERS.format("tests/control and the launchers' tests"),
    "ddp.md": _OF_READERS.format("tests/torch/ddp"),
    "policies.md": "it takes minutes of a quiet machine; tests/bench and tests/control run others",
    "replay.md": "it takes minutes of a quiet machine; tests/validate runs a smaller one",
    "staleness.md": _OF_READERS.format("tests/torch/test_stale.py and tests/strategy"),
    "strategies.md": _OF_READERS.format("tests/strategy and tests/cli/test_strategy.py"),
    "experiments/README.md": "it takes hours of a quiet machine; tests/bench runs small grids",
}
_PROGRAMS = "byteprophet make python3? pip docker kubectl mpirun sbatch salloc srun torchrun"
_COMMAND = re.compile(rf" *(?:[A-Z_]+=\S+ )*(?:\S*/)?(?:{'|'.join(_PROGRAMS.split())}) ")
_EXPERIMENT = re.compile(r"\bexperiments/(\w+)\.py\b")


@dataclass(frozen=True)
class Command:
    """A command of a page: its line, its text, and who runs it; "": nobody says so."""

    page: str
    line: int
    text: str
    run_by: str


def shown_commands(page: Path) -> Iterator[Command]:
    """Every command of ``page``: those in blocks, then the indented ones."""
    name = page.name if page.parent == DOCS else page.relative_to(CHECKOUT).as_posix()
    for block in blocks(page):
        for line, text in _logical_lines(block.text, block.text_line):
            if block.is_commands:
                if text.strip() and not text.startswith("#"):
                    yield Command(name, line, text, _who(block))
            elif not block.language and _COMMAND.match(text):
                yield Command(name, line, text, _who_otherwise(name, text))
    for line, text in _logical_lines(without_blocks(page), 1):
        if text.startswith("    ") and _COMMAND.match(text):
            yield Command(name, line, text.strip(), _who_otherwise(name, text))


def _logical_lines(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; one that ends in a backslash includes the next one."""
    kept, start = "", first
    for number, line in enumerate(text.splitlines(), first):
        start = start if kept else number
        whole = kept + (line.strip() if kept else line)
        kept = whole.removesuffix("\\") if whole.endswith("\\") else ""
        if not kept:
            yield start, whole


def _who(block: Block) -> str:
    if block.mark == "parse":
        return f"only parsed: {block.what}"
    if block.mark == "run by":
        return block.what
    who = "make test-pages" if "minutes" in block.needs else "tests/documents"
    return f"{who}, where namespaces are permitted" if "namespaces" in block.needs else who


def _who_otherwise(page: str, text: str) -> str:
    """Who runs a command that is in no block for a shell."""
    experiment = _EXPERIMENT.search(text)
    if experiment is None:
        return f"only parsed: {_ONLY_PARSED[page]}" if page in _ONLY_PARSED else ""
    test = CHECKOUT / "tests" / "experiments" / f"test_{experiment[1]}.py"
    parts = f"; {test.relative_to(CHECKOUT)} runs parts of it" if test.is_file() else ""
    return f"only named: it takes minutes to hours of a quiet machine{parts}"


def main() -> None:
    """Print all commands, page by page."""
    for page in PAGES:
        for command in shown_commands(page):
            print(f"{command.page}:{command.line}: {command.text}\n    {command.run_by}")


if __name__ == "__main__":
    main()
