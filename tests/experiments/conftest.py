"""Makes the scripts importable the way they see each other: from their own directories.

And what tests share whose jobs are stated (``stated_jobs.py``).
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")
if find_spec("sklearn") is None:  # only looked for: its import takes a second
    pytest.skip("scikit-learn is not installed", allow_module_level=True)

_EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path[:0] = [str(_EXPERIMENTS), str(_EXPERIMENTS / "digits"), str(Path(__file__).parent)]

import stated_jobs  # noqa: E402


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """Of one small cell."""
    return stated_jobs.small_cell(tmp_path)


@pytest.fixture
def ran(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> stated_jobs.Ran:
    """Iterations take as the test's module states in ``iteration_ns``."""
    return stated_jobs.state_jobs(monkeypatch, request.module.iteration_ns)
