"""The table of settings over simulated cells."""

from __future__ import annotations

import pytest
from policy_defaults import cell, ratios


def test_ratios_are_to_the_bound_and_follow_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policy_defaults.NETWORKS", ("resnet18", "vgg19", "random:1"))
    small = ratios("p3:partition_bytes=65536", 500, 500)
    large = ratios("p3:partition_bytes=1048576", 500, 500)
    assert len(small) == len(large)
    assert min(small + large) >= 1
    # Messages are dear here: sixteen times as many of them cannot be better anywhere on average.
    assert sum(small) > sum(large)


def test_cell_is_the_geometric_mean_and_the_worst() -> None:
    assert cell([1.0, 4.0, 2.0]) == "2.000 4.00"
