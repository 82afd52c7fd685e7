"""The page of the Python API has all names that a script may use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import byteprophet
import byteprophet.torch

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.parametrize("module", [byteprophet, byteprophet.torch])
def test_every_public_name_is_on_the_page(module: object) -> None:
    names: list[str] = vars(module)["__all__"]
    page = re.findall(r"byteprophet\.(?:torch\.)?(\w+)", PAGE.read_text())
    assert [name for name in names if name not in page] == []
