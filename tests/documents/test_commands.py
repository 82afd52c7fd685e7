"""Commands that the documents show are commands that there are."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_reference import command_tree, reference
from documents import CHECKOUT, DOCS, TASK_PAGES, blocks, byteprophet_arguments, shown_commands

from byteprophet.cli.main import COMMANDS

PAGES = [
    *sorted(DOCS.glob("*.md")),
    CHECKOUT / "README.md",
    CHECKOUT / "CONTRIBUTING.md",
    CHECKOUT / "experiments" / "README.md",
]
SHOWN = [(page.name, line) for page in PAGES for line in shown_commands(page)]


def without_calls(command: Any) -> Any:
    """The command, and all below it, which then parse and do nothing."""
    command.callback = lambda **_arguments: None
    for each in getattr(command, "commands", {}).values():
        without_calls(each)
    return command


@pytest.fixture(scope="module")
def parse() -> Any:
    """Parses the arguments of byteprophet; an exception says what is wrong with them."""
    return without_calls(command_tree())


def test_documents_show_commands() -> None:
    assert len(SHOWN) > 100
    assert {line.split()[1] for _, line in SHOWN if line.startswith("byteprophet ")} >= {
        *COMMANDS
    } - {"control"}


@pytest.mark.parametrize(("page", "line"), SHOWN)
def test_a_shown_command_parses(parse: Any, page: str, line: str) -> None:
    if _is_a_name(line):
        return
    for arguments in byteprophet_arguments(line):
        parse(arguments, prog_name="byteprophet", standalone_mode=False)


def _is_a_name(line: str) -> bool:
    """Whether a text speaks of a command rather than calling it: ``byteprophet run``."""
    _, *words = line.split()
    return len(words) <= 2 and all(word.isalpha() and word.islower() for word in words)


@pytest.mark.parametrize(
    "line", ["byteprophet run --wrokers 2 true", "byteprophet fly", "A=1 x && byteprophet report"]
)
def test_what_is_no_command_is_found(parse: Any, line: str) -> None:
    (arguments,) = byteprophet_arguments(line)
    with pytest.raises(Exception, match=r"No such|Missing"):
        parse(arguments, prog_name="byteprophet", standalone_mode=False)


def test_arguments_are_what_a_shell_would_pass() -> None:
    text = 'A="x y" byteprophet run \\\n  -- a "b c" && echo; byteprophet doctor | cat # run\n'
    assert list(byteprophet_arguments(text)) == [["run", "--", "a", "b c"], ["doctor"]]


@pytest.mark.parametrize("page", [DOCS / name for name in (*TASK_PAGES, "packages.md")])
def test_blocks_of_task_pages_are_for_a_shell(page: Path) -> None:
    shown = [block for block in blocks(page) if block.is_commands]
    assert shown
    for block in shown:
        subprocess.run(["bash", "-n", "-c", block.text], check=True, timeout=60)


def test_the_reference_has_every_command_with_its_options() -> None:
    lines = reference().splitlines()
    headings = [line for line in lines if line.startswith("#")]
    assert [line for line in headings if line.startswith("## ")] == [
        f"## byteprophet {name}" for name in COMMANDS
    ]
    assert "### byteprophet strategy make" in headings
    assert any(line.startswith("| `--workers INTEGER` | Number of workers.") for line in lines)
    assert "byteprophet run [OPTIONS] COMMAND..." in lines
