"""Makes the scripts importable the way they see each other: from their own directories."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

_EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path[:0] = [str(_EXPERIMENTS), str(_EXPERIMENTS / "digits"), str(Path(__file__).parent)]
