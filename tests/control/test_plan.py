"""The plan as a function of what the workers report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.control.messages import Profile, Sample
from byteprophet.control.plan import Facts, NoPlan, merge_profiles, slowest_link, solve

from .conftest import MEGABYTE, MS, profile

PARTITION = 256 * 1024


def sample(bps: int, direction: str = "push", server: int = 0, **fields: int) -> Sample:
    return Sample(server=server, direction=direction, bandwidth_bps=bps, **fields)  # type: ignore[arg-type]


def later(base: Profile, name: str, by_ns: int) -> Profile:
    return base.model_copy(
        update={
            "tensors": [
                tensor.model_copy(update={"ready_ns": tensor.ready_ns + by_ns, "spread_ns": 7})
                if tensor.name == name
                else tensor
                for tensor in base.tensors
            ]
        }
    )


def test_the_last_worker_counts_tensor_by_tensor() -> None:
    base = profile(10, 20, 30)
    merged = merge_profiles([later(base, "t0", 5 * MS), base, later(base, "t2", 3 * MS)])
    assert [tensor.ready_ns for tensor in merged.tensors] == [7 * MS, 1 * MS, 3 * MS]
    assert [tensor.spread_ns for tensor in merged.tensors] == [7, 1000, 7]


@pytest.mark.parametrize(
    ("profiles", "named"),
    [
        ([], "no profile"),
        ([profile(10, 20), profile(10, 20, 30)], "'t2'"),
        ([profile(10, 20), profile(10, 21)], "several sizes"),
    ],
)
def test_profiles_that_cannot_be_one_jobs(profiles: list[Profile], named: str) -> None:
    with pytest.raises(NoPlan, match=named):
        merge_profiles(profiles)


def test_the_slowest_worker_and_direction_count() -> None:
    link = slowest_link(
        [
            [sample(900, server=0), sample(500, server=1), sample(2000, "pull")],
            [sample(1000), sample(700, "pull", spread_bps=30, delay_ns=9), sample(600, "pull", 1)],
        ]
    )
    assert (link.bandwidth_bps, link.spread_bps, link.delay_ns) == (1000, 0, 9)
    assert slowest_link([[], []]).bandwidth_bps is None


def test_blocks_tell_what_travels_between_releases() -> None:
    """t2 ready at 0, t1 at 1 ms, t0 at 2 ms; a megabyte takes 0.8 ms."""
    link = [sample(10 * 10**9)]
    solution = solve(Facts([profile(MEGABYTE, MEGABYTE, 3 * MEGABYTE)], [link], PARTITION))
    assert [block.tensors for block in solution.blocks] == [["t2"], ["t1", "t2"], ["t0", "t2"]]
    assert [block.starts_ns for block in solution.blocks] == [0, MS, 2 * MS]
    assert solution.blocks[-1].ends_ns == 4 * MS


sizes = st.lists(st.integers(1, 20 * MEGABYTE), min_size=1, max_size=20)


@given(sizes, st.integers(10**8, 10**11))
def test_every_tensor_travels_and_nothing_before_it_is_ready(
    drawn: list[int], bandwidth_bps: int
) -> None:
    one = profile(*drawn, backward_ns=30 * MS)
    solution = solve(Facts([one], [[sample(bandwidth_bps)]], PARTITION))
    ready = {tensor.name: tensor.ready_ns for tensor in one.tensors}
    travelled = {name for block in solution.blocks for name in block.tensors}
    assert travelled == set(ready)
    for block in solution.blocks:
        assert all(ready[name] <= block.ends_ns for name in block.tensors)
    assert [one.name for one in solution.ready] == [f"t{i}" for i in range(len(drawn))]


@given(sizes, st.integers(10**8, 10**11))
def test_a_faster_link_is_never_predicted_slower(drawn: list[int], bandwidth_bps: int) -> None:
    one = profile(*drawn, backward_ns=30 * MS)
    slow, fast = (
        solve(Facts([one], [[sample(bps)]], PARTITION)).predicted_iteration_ns
        for bps in (bandwidth_bps, 2 * bandwidth_bps)
    )
    assert slow + 1 >= fast >= one.backward_ns + one.forward_ns


def test_without_samples_the_iteration_is_compute() -> None:
    one = profile(MEGABYTE, MEGABYTE)
    assert solve(Facts([one], [[]], PARTITION)).predicted_iteration_ns == 12 * MS
