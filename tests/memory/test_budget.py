"""The chosen mix is the cheapest that fits, and measuring times changes nothing."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from byteprophet.errors import UserError
from byteprophet.memory.budget import choose, forward_times
from byteprophet.memory.kernels import KernelMemory
from byteprophet.memory.mixes import Regions, profile_regions
from byteprophet.memory.peak import predict_peak

from ..thorough import examples
from .small_models import BLOCKS, profiled_peak, training

COSTS = dict(zip(BLOCKS, (7, 5, 3, 11), strict=True))


Predicted = tuple[KernelMemory, Regions, dict[tuple[str, ...], int]]
MIXES = [tuple(itertools.compress(BLOCKS, mix)) for mix in itertools.product((0, 1), repeat=4)]


@pytest.fixture(scope="module")
def predicted() -> Predicted:
    """What is known of the model of convolutions: its kernels, its regions, each mix's peak."""
    made, kernels = training("convolutions"), KernelMemory()
    regions = profile_regions(made, BLOCKS, kernels)
    return kernels, regions, {mix: predict_peak(made, mix, kernels).total_bytes for mix in MIXES}


def test_the_cheapest_mix_that_fits_is_chosen(predicted: Predicted) -> None:
    made, (kernels, regions, peaks) = training("convolutions"), predicted
    for budget in sorted({round(peak / 0.98) for peak in peaks.values()})[:: examples(5, 1)]:
        choice = choose(made, regions, budget, COSTS, kernels)
        fitting = [mix for mix in MIXES if peaks[mix] <= budget * 0.99]
        assert choice.recompute_ns == min(sum(COSTS[path] for path in mix) for mix in fitting)
        assert choice.recompute_ns == sum(COSTS[path] for path in choice.checkpointed)
        assert choice.peak_bytes == peaks[choice.checkpointed]
        assert not choice.is_tight
        assert profiled_peak(training("convolutions"), choice.checkpointed) <= budget


def test_a_budget_that_only_just_fits_is_said_to_be_tight(predicted: Predicted) -> None:
    made, (kernels, regions, peaks) = training("convolutions"), predicted
    least = min(peaks.values())
    assert choose(made, regions, least, COSTS, kernels).is_tight
    with pytest.raises(UserError, match="no mix of checkpointed modules fits"):
        choose(made, regions, least - 1, COSTS, kernels)


def test_many_regions_are_decided_in_groups() -> None:
    made, kernels = training("attention"), KernelMemory()

    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))

    made.model.blocks = nn.Sequential(*(block() for _ in range(17)))
    paths = [f"blocks.{place}" for place in range(17)]
    regions = profile_regions(made, paths, kernels)
    budget = round((regions.peak([False] * 17) + regions.peak([True] * 17)) / 2)
    choice = choose(made, regions, budget, dict.fromkeys(paths, 1), kernels)
    assert 0 < len(choice.checkpointed) < 17
    assert choice.peak_bytes <= budget


def test_forward_times_are_measured_on_a_copy() -> None:
    made = training("convolutions")
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    times = forward_times(made, BLOCKS, repeats=1)
    assert times.keys() == set(BLOCKS)
    assert min(times.values()) > 0
    for name, value in made.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_module_that_never_runs_has_no_time() -> None:
    made = training("convolutions")
    made.model.idle = nn.Linear(1, 1)
    with pytest.raises(UserError, match="does not run 'idle'"):
        forward_times(made, ["idle"], repeats=1)
