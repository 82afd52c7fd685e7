"""The import hook of training scripts that do not mention byteprophet."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from byteprophet import _autoload

NAME = "autoload_subject"
SOURCE = """
import os
if os.environ.get("AUTOLOAD_FAILS"):
    raise ImportError("not now")
class DistributedDataParallel:
    pass
plain = DistributedDataParallel.__init__
"""


@pytest.fixture
def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module that the hook takes for torch's."""
    (tmp_path / f"{NAME}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_autoload, "_DATA_PARALLEL", NAME)
    monkeypatch.setattr(sys, "meta_path", [_autoload._Finder([NAME]), *sys.meta_path])
    yield
    sys.modules.pop(NAME, None)


def is_changed() -> bool:
    module = importlib.import_module(NAME)
    return module.DistributedDataParallel.__init__ is not module.plain


@pytest.mark.usefixtures("hooked")
def test_a_script_may_look_for_a_module_first() -> None:
    assert importlib.util.find_spec(NAME) is not None
    assert is_changed()


@pytest.mark.usefixtures("hooked")
def test_an_import_that_fails_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOLOAD_FAILS", "1")
    with pytest.raises(ImportError, match="not now"):
        importlib.import_module(NAME)
    monkeypatch.delenv("AUTOLOAD_FAILS")
    assert is_changed()


@pytest.mark.usefixtures("hooked")
def test_what_has_been_imported_is_found_as_without_the_hook() -> None:
    assert is_changed()
    del sys.modules[NAME]
    assert not is_changed()
