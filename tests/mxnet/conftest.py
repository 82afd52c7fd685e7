"""These tests run in MXNet's own environment: ``make test-mxnet``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("mxnet", reason="MXNet has an environment of its own: make test-mxnet")
sys.path.insert(0, str(Path(__file__).parent))
