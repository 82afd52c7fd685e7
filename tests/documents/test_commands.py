"""Commands that the documents show are commands that there are."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_reference import command_tree, reference
from documents import (
    CHECKOUT,
    PAGES,
    blocks,
    byteprophet_arguments,
    named_commands,
    shown_calls,
)
from shown_commands import shown_commands

from byteprophet.cli.main import COMMANDS

CALLS = [(page.name, line) for page in PAGES for line in shown_calls(page)]
NAMED = [(page.name, text) for page in PAGES for text in named_commands(page)]


def without_calls(command: Any) -> Any:
    """The command, and all below it, which then parse and do nothing."""
    command.callback = lambda **_arguments: None
    for each in getattr(command, "commands", {}).values():
        without_calls(each)
    return command


@pytest.fixture(scope="module")
def tree() -> Any:
    """The commands; calling them parses arguments, and an exception says what is wrong."""
    return without_calls(command_tree())


def test_documents_show_commands() -> None:
    named = {text.split()[1] for _, text in [*CALLS, *NAMED] if text.startswith("byteprophet ")}
    assert named >= set(COMMANDS)
    assert len(CALLS) > 50


@pytest.mark.parametrize(("page", "line"), CALLS)
def test_a_shown_call_parses(tree: Any, page: str, line: str) -> None:
    found = list(byteprophet_arguments(line))
    assert found
    for arguments in found:
        tree(arguments, prog_name="byteprophet", standalone_mode=False)


@pytest.mark.parametrize(("page", "text"), sorted(set(NAMED)))
def test_a_named_command_has_the_named_options(tree: Any, page: str, text: str) -> None:
    command, words = tree, text.partition(" -- ")[0].split()[1:]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if command is tree:
        assert words[0] in ("COMMAND", "--help"), f"there is no command {words[0]}"
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    given = {word for word in words if word.startswith("--")}
    assert given <= options | {"--help"}
    if page == "README.md" and given & {"--schedulers", "--runtime"}:
        assert given & {"--workload", "--grid"}, "its table has commands that run as they are"


@pytest.mark.parametrize(
    "line", ["byteprophet run --wrokers 2 true", "byteprophet fly", "A=1 x && byteprophet report"]
)
def test_what_is_no_command_is_found(tree: Any, line: str) -> None:
    (arguments,) = byteprophet_arguments(line)
    with pytest.raises(Exception, match=r"No such|Missing"):
        tree(arguments, prog_name="byteprophet", standalone_mode=False)


def test_arguments_are_what_a_shell_would_pass() -> None:
    text = 'A="x y" byteprophet run \\\n  -- a "b c" && echo; byteprophet doctor | cat # run\n'
    assert list(byteprophet_arguments(text)) == [["run", "--", "a", "b c"], ["doctor"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_of_commands_are_for_a_shell(page: Path) -> None:
    for block in blocks(page):
        if block.is_commands:
            subprocess.run(["bash", "-n", "-c", block.text], check=True, timeout=60)


def test_of_every_command_is_said_who_runs_it() -> None:
    every = [command for page in PAGES for command in shown_commands(page)]
    assert len(every) > 100
    untold = [f"{each.page}:{each.line}: {each.text}" for each in every if not each.run_by]
    assert untold == []


def test_who_is_said_to_run_commands_is_there() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.mark == "run by":
                for path in block.what.split(", "):
                    assert (CHECKOUT / path).exists(), f"{page.name}, line {block.line}: {path}"
        for command in shown_commands(page):
            for path in re.findall(r"\btests/[\w/]+(?:\.py)?", command.run_by):
                assert (CHECKOUT / path).exists(), command


def test_experiments_that_are_named_exist() -> None:
    for page in PAGES:
        for command in shown_commands(page):
            for path in re.findall(r"\bexperiments/\w+\.py\b", command.text):
                assert (CHECKOUT / path).is_file(), command


def test_the_reference_has_every_command_with_its_options(tree: Any) -> None:
    lines = reference().splitlines()
    headings = [line for line in lines if line.startswith("#")]
    assert [line for line in headings if line.startswith("## ")] == [
        f"## byteprophet {name}" for name in tree.commands
    ]
    assert set(tree.commands) >= {*COMMANDS}
    assert "### byteprophet strategy make" in headings
    assert any(re.match(r"\| `--workers \S+` \| Number of workers\.", line) for line in lines)
    assert any(line.startswith("byteprophet run [OPTIONS] ") for line in lines)
    assert "byteprophet bench --grid default --phase base" in lines
