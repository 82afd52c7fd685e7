"""Peaks of mixes by the regions' profiles, beside the prediction of each mix."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.memory.kernels import KernelMemory
from byteprophet.memory.mixes import profile_regions
from byteprophet.memory.peak import predict_peak

from ..thorough import examples
from .small_models import BLOCKS, training


@pytest.mark.parametrize(("kind", "micro_batches"), [("convolutions", 2), ("attention", 1)])
def test_mixes_are_composed_as_they_are_predicted(kind: str, micro_batches: int) -> None:
    made, kernels = training(kind, micro_batches=micro_batches), KernelMemory()
    regions = profile_regions(made, BLOCKS, kernels)
    mixes = list(itertools.product((False, True), repeat=len(BLOCKS)))[:: examples(5, 1)]
    composed = regions.peaks(mixes)
    predicted = [
        predict_peak(made, itertools.compress(BLOCKS, mix), kernels).total_bytes for mix in mixes
    ]
    assert max(predicted) > min(predicted)
    assert np.abs(composed / np.array(predicted) - 1).max() < 0.002
    assert regions.peak(mixes[1]) == composed[1]


def test_one_region_is_profiled() -> None:
    made, kernels = training("attention"), KernelMemory()
    regions = profile_regions(made, ["blocks"], kernels)
    assert regions.peak([True]) == predict_peak(made, ["blocks"], kernels).total_bytes
    assert regions.peak([False]) == predict_peak(made, [], kernels).total_bytes


def test_regions_in_another_order_are_refused() -> None:
    with pytest.raises(UserError, match="one after the other"):
        profile_regions(training("attention"), [BLOCKS[1], BLOCKS[0]])


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        (["blocks.9"], "no module 'blocks.9'"),
        ([""], "no module ''"),
        (["blocks", "blocks.1"], "'blocks.1' is inside 'blocks'"),
        ([], "no region"),
    ],
)
def test_names_that_cannot_be_regions_are_refused(paths: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        profile_regions(training("attention"), paths)
