"""Tensors for which the script chose a compressor are known by name."""

from __future__ import annotations

import pytest

import byteprophet.torch as bps
from byteprophet.torch.sync import compressed


def test_only_those_with_a_compressor_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "names", set())
    monkeypatch.setattr(compressed.basics, "declare", lambda name, **arguments: 0)
    bps.declare("Gradient.plain")
    bps.declare("Gradient.squeezed", byteps_compressor_type="onebit")
    assert compressed.names == {"Gradient.squeezed"}
