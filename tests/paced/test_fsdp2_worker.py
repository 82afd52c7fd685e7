"""The units that FSDP2 shards: every layer once, in order, bursts whole, no larger than needed."""

from __future__ import annotations

from itertools import pairwise

import pytest

pytest.importorskip("torch")

from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet.paced.fsdp2_worker import units
from byteprophet.paced.model import PacedLayer, PacedModel
from byteprophet.workload import Tensor, Workload


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1, max_size=20),
    st.integers(1, 6),
    st.integers(0, 400),
)
def test_units(tensors: list[tuple[int, bool]], least_layers: int, least_bytes: int) -> None:
    """``tensors``: elements, and whether the tensor begins a burst."""
    bursts = [sum(begins for _, begins in tensors[: place + 1]) for place in range(len(tensors))]
    workload = Workload(
        "any",
        1,
        tuple(
            Tensor(f"t{place}", 4 * elements, 0, 0, burst)
            for place, ((elements, _), burst) in enumerate(zip(tensors, bursts, strict=True))
        ),
    )
    model = PacedModel(workload, 0)
    layers = [layer for layer in model.children() if isinstance(layer, PacedLayer)]
    found = list(units(layers, least_layers, least_bytes))

    assert [layer for unit in found for layer in unit] == layers
    burst_of = dict(zip(layers, bursts, strict=True))
    for before, after in pairwise(found):
        assert burst_of[before[-1]] != burst_of[after[0]]
    for unit in found[:-1]:
        assert large_enough(unit, least_layers, least_bytes)
    for unit in found:
        # Without its last burst it would have been too small.
        rest = [layer for layer in unit if burst_of[layer] != burst_of[unit[-1]]]
        assert not rest or not large_enough(rest, least_layers, least_bytes)


def large_enough(unit: list[PacedLayer], least_layers: int, least_bytes: int) -> bool:
    size_bytes = sum(4 * layer.values.numel() for layer in unit)
    return len(unit) >= least_layers and size_bytes >= least_bytes
