"""Texts of others on the terminal."""

from __future__ import annotations

import pytest
from rich.console import Group
from rich.table import Table

from byteprophet.report.console import lines_text, progress_of, table_console

EVIL = "a\x1b]0;owned\x07\nb:smile:[red]"
SHOWN = r"a\x1b]0;owned\x07\nb:smile:[red]"


def test_names_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(EVIL, title=EVIL, caption=lines_text([EVIL, "next"]))
    table.add_row(EVIL)
    console = table_console()
    console.print(table)
    console.print(Group(EVIL))
    progress_of("bench")(EVIL.replace("\n", " "))
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert "\x07" not in shown.out + shown.err
    assert shown.out.count(SHOWN) == 5
    assert "next" in shown.out


def test_what_is_printed_may_have_lines(capsys: pytest.CaptureFixture[str]) -> None:
    table_console().print("one\ntwo\x1b")
    assert capsys.readouterr().out == "one\ntwo\\x1b\n"
