"""Partitions by rule: what every one keeps, and each rule's own promise."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.allreduce.groups import (
    BUCKET_BYTES,
    Groups,
    fixed_size,
    merged_gradient,
    near_layer,
)
from byteprophet.allreduce.order import iteration_ns
from byteprophet.allreduce.timing import Timing

from .timings import MODELS, of_model, timings


def group_bytes(timing: Timing, group: tuple[int, ...]) -> int:
    return sum(timing.parameters[place].size_bytes for place in group)


@given(timings(), st.integers(0, 40), st.integers(1, 5))
def test_groups_are_runs_of_the_readiness_order(
    timing: Timing, bucket_bytes: int, layers: int
) -> None:
    for groups in (
        fixed_size(timing, bucket_bytes),
        near_layer(timing, layers),
        merged_gradient(timing),
    ):
        assert tuple(chain(*groups)) == timing.by_readiness
        assert all(groups)


@given(timings(), st.integers(0, 40))
def test_a_bucket_is_filled_and_not_overfilled(timing: Timing, bucket_bytes: int) -> None:
    groups = fixed_size(timing, bucket_bytes)
    for group in groups:
        assert len(group) == 1 or group_bytes(timing, group) <= bucket_bytes
    for group, after in pairwise(groups):
        assert group_bytes(timing, group) + group_bytes(timing, after[:1]) > bucket_bytes


def layers_of(timing: Timing, groups: Groups) -> list[list[str]]:
    return [
        list(dict.fromkeys(timing.parameters[place].name.rpartition(".")[0] for place in group))
        for group in groups
    ]


@pytest.mark.parametrize("layers", [1, 4])
def test_near_layers_stay_whole_and_are_as_many_as_asked(layers: int) -> None:
    timing = of_model("resnet50", 1.0)
    found = layers_of(timing, near_layer(timing, layers))
    assert len(set(chain(*found))) == len(list(chain(*found))) == 107  # the paper's Table I
    assert {len(names) for names in found[:-1]} == {layers}
    assert 1 <= len(found[-1]) <= layers


def test_near_layer_needs_a_layer() -> None:
    with pytest.raises(ValueError, match="at least one"):
        near_layer(of_model("resnet50", 1.0), 0)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("share", [0.7, 1.0, 1.4])
@pytest.mark.parametrize("cost_ns", [0, 100_000, 2_000_000])
def test_merging_gradients_needs_no_tuning(model: str, share: float, cost_ns: int) -> None:
    """What it was proposed for: better than single gradients, as good as any bucket size.

    The latter only while a message costs less than the time between two gradients.
    """
    timing = of_model(model, share, message_cost_ns=cost_ns)

    def time_ns(groups: Groups) -> int:
        return iteration_ns("allreduce", timing, groups)

    merged_ns = time_ns(merged_gradient(timing))
    assert merged_ns <= time_ns(fixed_size(timing, 0))
    if cost_ns < 1_000_000:
        buckets_ns = [time_ns(fixed_size(timing, size)) for size in BUCKET_BYTES]
        assert merged_ns <= 1.001 * min(buckets_ns)
