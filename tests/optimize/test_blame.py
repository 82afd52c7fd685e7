"""Passes of other packages that fail: one line names each, whatever of it raises."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_jobs import random_job, with_runtime

from byteprophet.errors import UserError
from byteprophet.optimize.blame import blaming
from byteprophet.optimize.moves import Move
from byteprophet.optimize.passes import load_passes
from byteprophet.optimize.passes.runtime import Runtime
from byteprophet.optimize.search import Left, search

_PASS = """
from byteprophet.optimize.moves import Effect, Move

class Fragile:
    name = "fragile"
    effect = Effect.EXACT
    def starts(self, job):
        return []
    def moves(self, job, hints):
        return []
"""
_FAILS = "raise KeyError('no such layer\\nat all')"
_JOB = with_runtime(random_job(3, 8), "allreduce", 1 << 20)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """As pip would have it: a module, and what the package says of itself."""
    about = folder / "brittle-2.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: brittle\nVersion: 2.0\n")
    (about / "entry_points.txt").write_text("[byteprophet.passes]\nfragile = fragile:Fragile\n")
    (folder / "fragile.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(__import__("sys").modules, "fragile", raising=False)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("        return []\n    def moves", f"        {_FAILS}\n    def moves"),
        ("        return []\n    def moves", f"        yield 1\n        {_FAILS}\n    def moves"),
        (
            "        return []\n    def moves",
            "        yield Move('x', lambda: {}['no such layer'])\n    def moves",
        ),
        ("        return []\n    def moves", "        yield Move('x', None)\n    def moves"),
        ("hints):\n        return []", f"hints):\n        {_FAILS}"),
        ("hints):\n        return []", "hints):\n        return None"),
    ],
)
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_pass_that_fails_in_a_search_is_named(
    right: str, wrong: str, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _PASS.count(right) == 1
    install(tmp_path, monkeypatch, _PASS.replace(right, wrong))
    passes = load_passes(["fragile"], [])
    left = [Left(Move("as it was", _JOB))] * goes_on
    with pytest.raises(UserError) as refused:
        search(_JOB, passes, budget_s=5.0, left=left)
    said = str(refused.value)
    assert said.startswith("pass 'fragile' (fragile:Fragile, of package brittle) failed: ")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("    effect = Effect.EXACT\n", "", "does not say its effect"),
        ("Effect.EXACT", "'exact'", "does not say its effect"),
        ('    name = "fragile"\n', "", "calls itself None"),
        ("def moves", "def move", r"has no moves\(\)"),
        ("class Fragile", "class Other", "cannot be loaded: AttributeError"),
        ("class Fragile:", f"class Fragile:\n    {_FAILS}", "cannot be loaded: KeyError: 'no such"),
    ],
)
def test_a_pass_that_is_none_is_named(
    right: str, wrong: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _PASS.count(right) == 1
    install(tmp_path, monkeypatch, _PASS.replace(right, wrong))
    with pytest.raises(UserError, match=f"fragile.*of package brittle.*{said}"):
        load_passes(["fragile"], [])


def test_a_fault_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(KeyError), blaming(Runtime()):
        raise KeyError("ours")
