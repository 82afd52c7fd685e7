"""The page of the Python API has all names that a script may use."""

from __future__ import annotations

import re
from inspect import isfunction
from pathlib import Path

import pytest

import byteprophet
import byteprophet.torch
from byteprophet.torch.front.optimizer_class import Distributed

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text()


@pytest.mark.parametrize("module", [byteprophet, byteprophet.torch])
def test_every_public_name_is_on_the_page(module: object) -> None:
    names: list[str] = vars(module)["__all__"]
    page = re.findall(r"byteprophet\.(?:torch\.)?(\w+)", PAGE)
    assert [name for name in names if name not in page] == []


def test_every_method_of_a_distributed_optimizer_is_on_the_page() -> None:
    names = [name for name, member in vars(Distributed).items() if isfunction(member)]
    public = [name for name in names if not name.startswith("_")]
    page = re.findall(r"optimizer_class\.Distributed\.(\w+)", PAGE)
    assert sorted(public) == sorted(page)


def test_what_other_pages_import_is_on_the_page() -> None:
    imported = [
        f"{module}.{name}"
        for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
        for module, names in re.findall(
            r"^from (byteprophet[\w.]*) import (.+)$", path.read_text(), re.MULTILINE
        )
        for name in names.split(", ")
    ]
    assert imported
    assert [name for name in imported if not re.search(rf":: {re.escape(name)}$", PAGE, re.M)] == []
