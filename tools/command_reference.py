"""The reference of all commands as Markdown, made from the commands themselves.

    python tools/command_reference.py > commands.md

The site of the documents includes it where it is built, so that it is never out of date.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import typer

from byteprophet.cli.main import COMMANDS, make_app

_SPECIAL = re.compile(r"([\\`*_<>\[\]|#])")
_EXAMPLE = "Example: "
_WIDTH = 200  # of a line that shows how a command is used


def command_tree() -> Any:
    """The application as typer runs it: a group of commands, some of which are groups."""
    return typer.main.get_command(make_app(COMMANDS))


def reference() -> str:
    """A section for each command; commands of a group are sections below it."""
    root = command_tree()
    context = typer.Context(root, info_name="byteprophet", max_content_width=_WIDTH)
    lines: list[str] = []
    for name, command in root.commands.items():
        lines += _section(command, name, context, level=2)
    return "\n".join(lines)


def _section(command: Any, name: str, parent: typer.Context, level: int) -> Iterator[str]:
    context = typer.Context(
        command, info_name=name, parent=parent, terminal_width=_WIDTH, max_content_width=_WIDTH
    )
    yield from (f"{'#' * level} {context.command_path}", "")
    yield from _help(inspect.cleandoc(command.help or ""))
    usage = " ".join(command.get_usage(context).removeprefix("Usage:").split())
    yield from ("```text", usage, "```", "")
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    rows = [record for record in records if record is not None]
    if rows:
        yield from ("| | |", "|---|---|")
        for shown, text in rows:
            yield f"| `{shown.replace('|', chr(92) + '|')}` | {_plain(' '.join(text.split()))} |"
        yield ""
    for each, below in getattr(command, "commands", {}).items():
        yield from _section(below, each, context, level + 1)


def _help(text: str) -> Iterator[str]:
    """The paragraphs of a help; examples become commands for a shell, in a row one block."""
    paragraphs = (" ".join(each.split()) for each in re.split(r"\n\s*\n", text))
    for is_example, group in groupby(paragraphs, lambda each: each.startswith(_EXAMPLE)):
        if is_example:
            yield from ("```sh", *(each.removeprefix(_EXAMPLE) for each in group), "```", "")
        else:
            yield from (line for each in group for line in (_plain(each), ""))


def _plain(text: str) -> str:
    """``text`` such that Markdown shows it as it is."""
    return _SPECIAL.sub(r"\\\1", text)


if __name__ == "__main__":
    print(reference())
