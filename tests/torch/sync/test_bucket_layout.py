"""Groups by size, and a plan as integers on its way to the other ranks."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.allreduce.groups import fixed_size
from byteprophet.allreduce.model import Order
from byteprophet.torch.retuning.planning import _decoded, _encoded
from byteprophet.torch.sync.bucket_layout import Size, by_rule

SIZES = {
    "a": Size(10, 40, torch.float32),
    "b": Size(10, 40, torch.float32),
    "c": Size(5, 40, torch.float64),
    "d": Size(100, 400, torch.float32),
    "e": Size(1, 1, torch.uint8),
}
NEEDED = list(SIZES)


@pytest.mark.parametrize("mode", ["allreduce", "dear", "dear-planned"])
@pytest.mark.parametrize("shareable", [True, False])
def test_neighbours_in_readiness_up_to_a_size(mode: str, shareable: bool) -> None:
    rule = functools.partial(fixed_size, bucket_bytes=80)
    groups = by_rule(mode, SIZES, NEEDED[::-1], NEEDED, rule, shareable)
    # "d" is too large for any; "c" and "b" travel at one time, as different types.
    assert [group.parameters for group in groups] == [("e",), ("d",), ("c",), ("b",), ("a",)]
    assert {group.whole for group in groups} == {not (shareable and mode == "dear")}
    reductions = [group.reduce_place for group in groups]
    gathers = [group.gather_place for group in groups]
    assert reductions == sorted(reductions)
    assert reductions[2] == reductions[3]
    assert gathers[2] == gathers[3]
    if mode == "allreduce":
        assert gathers == [place + 1 for place in reductions]
    else:
        assert gathers == sorted(gathers, reverse=True)
        assert max(reductions) < min(gathers)


@given(st.data())
def test_a_plan_arrives_as_it_was(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 30))
    order = data.draw(st.permutations(range(count)))
    cuts = data.draw(st.sets(st.integers(1, count - 1))) if count > 1 else set()
    bounds = [0, *sorted(cuts), count]
    groups = tuple(tuple(order[a:b]) for a, b in itertools.pairwise(bounds))
    positions = data.draw(st.permutations(range(2 * len(groups))))
    after_step = data.draw(
        st.lists(st.booleans(), min_size=len(groups), max_size=len(groups)).map(tuple)
    )
    plan = (
        groups,
        Order(tuple(positions[: len(groups)]), tuple(positions[len(groups) :]), after_step),
    )
    assert _decoded(_encoded(plan, count), count) == plan
