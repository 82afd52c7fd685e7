"""Regions that were measured before count again if they are still alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from byteprophet.job.region_costs import RegionCosts, read_region_costs
from byteprophet.job.strategy import RECOMPUTED
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.regions import probe
from byteprophet.torch.regions.calls import CallRecorder, ModuleCall


def measured(path: Path, width: int, batch: int, budget_s: float) -> RegionCosts:
    """The file ``path`` after a process has measured the regions of a model."""
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 4))
    calls: list[ModuleCall] = []
    CallRecorder(model, calls.append)
    model(torch.randn(batch, 4))
    settings = replace(
        RuntimeSettings.from_environment(), region_modes=(RECOMPUTED,), region_budget_s=budget_s
    )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    probe._measure(calls[0], names, path, settings)
    return read_region_costs(path)


@pytest.mark.parametrize(("width", "batch"), [(4, 8), (3, 6)])
def test_what_another_batch_or_model_cost_is_measured_again(
    tmp_path: Path, width: int, batch: int
) -> None:
    """Without time for it, each process measures one region."""
    path = tmp_path / "region-costs.json"
    first = measured(path, 4, 6, 60.0)
    assert len(first.regions) == 4  # of each module, of both, and of the whole model
    assert measured(path, 4, 6, 1e-9) == first
    other = measured(path, width, batch, 1e-9)
    assert len(other.regions) == 1
    assert {*other.unmeasured} == {*first.regions} - {*other.regions}
