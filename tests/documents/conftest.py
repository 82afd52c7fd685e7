"""Makes ``tools/`` importable, as the tools see each other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("markdown_it")  # MXNet's environment has none

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
