"""The plan as a function of what the workers report."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet import _core
from byteprophet.control import plan
from byteprophet.control.messages import Sample
from byteprophet.control.plan import (
    Facts,
    Link,
    NoPlan,
    Solution,
    alike,
    merge_profiles,
    predict_ns,
    slowest_link,
    solve,
)
from byteprophet.job.partitions import server_of
from byteprophet.profile import Profile

from .conftest import MEGABYTE, MS, profile

SETTINGS = _core.default_settings("prophet")


def solved(one: Profile, *samples: Sample) -> Solution:
    return solve(Facts("prophet", SETTINGS, [one, one], [samples, samples]))


def sample(bps: int, direction: str = "push", server: int | None = 0, **fields: int) -> Sample:
    return Sample(server=server, direction=direction, bandwidth_bps=bps, **fields)  # type: ignore[arg-type]


def later(base: Profile, name: str, by_ns: int) -> Profile:
    return base.model_copy(
        update={
            "tensors": tuple(
                tensor.model_copy(update={"ready_ns": tensor.ready_ns + by_ns, "spread_ns": 7})
                if tensor.name == name
                else tensor
                for tensor in base.tensors
            )
        }
    )


def renamed(base: Profile, names: str) -> Profile:
    """Its tensors with a letter each."""
    tensors = zip(base.tensors, names, strict=True)
    return base.model_copy(
        update={"tensors": tuple(t.model_copy(update={"name": name}) for t, name in tensors)}
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
            [sample(1000, delay_ns=9), sample(700, "pull", delay_ns=5000), sample(600, "pull", 1)],
        ]
    )
    assert (link.bandwidth_bps, link.spread_bps, link.delay_ns) == (1000, 0, 9)
    # What sees all servers together counts, not what each has of it.
    (link,) = [slowest_link([[sample(900), sample(500, server=1), sample(800, server=None)]])]
    assert link.bandwidth_bps == 800
    assert slowest_link([[], []]).bandwidth_bps is None


def test_blocks_tell_what_travels_between_releases() -> None:
    """t2 ready at 0, t1 at 1 ms, t0 at 2 ms; a megabyte takes 0.8 ms."""
    solution = solved(profile(MEGABYTE, MEGABYTE, 3 * MEGABYTE), sample(10 * 10**9))
    assert [block.tensors for block in solution.blocks] == [["t2"], ["t1", "t2"], ["t0", "t2"]]
    assert [block.starts_ns for block in solution.blocks] == [0, MS, 2 * MS]
    assert solution.blocks[-1].ends_ns == 4 * MS


sizes = st.lists(st.integers(1, 3 * MEGABYTE), min_size=1, max_size=8)
few = settings(max_examples=25)


@few
@given(sizes, st.integers(10**8, 10**11))
def test_every_tensor_travels_and_nothing_before_it_is_ready(
    drawn: list[int], bandwidth_bps: int
) -> None:
    one = profile(*drawn, backward_ns=30 * MS)
    solution = solved(one, sample(bandwidth_bps))
    ready = {tensor.name: tensor.ready_ns for tensor in one.tensors}
    travelled = {name for block in solution.blocks for name in block.tensors}
    assert travelled == set(ready)
    for block in solution.blocks:
        assert all(ready[name] <= block.ends_ns for name in block.tensors)
    assert [one.name for one in solution.ready] == [f"t{i}" for i in range(len(drawn))]


@few
@given(sizes, st.integers(10**8, 10**11))
def test_a_faster_link_is_never_predicted_slower(drawn: list[int], bandwidth_bps: int) -> None:
    one = profile(*drawn, backward_ns=30 * MS)
    slow, fast = (
        solved(one, sample(bps)).predicted_iteration_ns
        for bps in (bandwidth_bps, 2 * bandwidth_bps)
    )
    assert slow >= fast * 0.98  # to within what a larger window could win
    assert fast >= one.backward_ns + one.forward_ns


def test_a_large_estimate_of_what_messages_cost_is_no_reason_to_have_no_plan() -> None:
    one = profile(10, 20, 30)
    most, beyond = (solved(one, sample(10**8, message_cost_ns=cost_ms * MS)) for cost_ms in (5, 9))
    assert most.predicted_iteration_ns == beyond.predicted_iteration_ns
    assert most.predicted_iteration_ns > solved(one, sample(10**8)).predicted_iteration_ns


def test_without_samples_the_iteration_is_compute() -> None:
    one = profile(MEGABYTE, MEGABYTE)
    assert solved(one).predicted_iteration_ns == 12 * MS


@few
@given(sizes, st.integers(10**8, 10**11))
def test_no_prediction_is_below_the_bound(drawn: list[int], bandwidth_bps: int) -> None:
    one = profile(*drawn, backward_ns=30 * MS)
    before_ns = one.backward_ns - max(tensor.ready_ns for tensor in one.tensors)
    bound_ns = _core.iteration_bound_ns(
        drawn,
        [before_ns + tensor.ready_ns for tensor in one.tensors],
        [tensor.forward_ns for tensor in one.tensors],
        backward_ns=one.backward_ns,
        bandwidth_bps=bandwidth_bps,
        workers=2,
        servers=1,
    )
    assert solved(one, sample(bandwidth_bps)).predicted_iteration_ns >= bound_ns


def test_a_slow_worker_holds_up_the_prediction() -> None:
    one = profile(4 * MEGABYTE, 4 * MEGABYTE)
    fast, slow = [sample(10**9)], [sample(10**9 // 6)]
    mixed = solve(Facts("prophet", SETTINGS, [one, one], [fast, slow]))
    assert mixed.predicted_iteration_ns > 3 * solved(one, *fast).predicted_iteration_ns
    assert mixed.link.bandwidth_bps == 10**9 // 6


def test_names_decide_which_server_a_tensor_goes_to() -> None:
    """As in BytePS. One message at a time per server: two tensors of one server take longer."""
    one = profile(MEGABYTE, MEGABYTE, 4)
    links = [[sample(10**9, server=server, delay_ns=20 * MS) for server in range(2)]] * 2
    together_ns, apart_ns = (
        solve(
            Facts(
                "p3",
                {"partition_bytes": 1 << 22, "outstanding_messages": 1},
                [renamed(one, names)] * 2,
                links,
            )
        ).predicted_iteration_ns
        for names in ("acb", "abc")
    )
    servers = [server_of(number << 16, 2) for number in range(3)]
    assert servers[0] == servers[2] != servers[1]
    assert together_ns > apart_ns + MS


def test_all_workers_order_by_the_slowest_link_unless_they_were_told_another() -> None:
    one = profile(MEGABYTE, MEGABYTE)
    fast, slow = [sample(10**9)], [sample(10**8)]
    order = "plan_bandwidth_bps"
    assert solve(Facts("prophet", SETTINGS, [one, one], [fast, slow])).settings[order] == 10**8
    given = {**SETTINGS, order: 5}
    assert order not in solve(Facts("prophet", given, [one, one], [fast, slow])).settings
    assert order not in solve(Facts("prophet", SETTINGS, [one, one], [[], []])).settings
    paper = _core.default_settings("prophet-paper")
    assert order not in solve(Facts("prophet-paper", paper, [one, one], [fast, slow])).settings


def test_what_is_predicted_is_the_job_with_that_order() -> None:
    """The same as of a job that was started with it."""
    profiles = [profile(*([MEGABYTE] * 20)), later(profile(*([MEGABYTE] * 20)), "t7", 5 * MS)]
    links = [[sample(10**9)], [sample(9 * 10**8)]]
    ordered = solve(Facts("prophet", SETTINGS, profiles, links))
    given = {**SETTINGS, "plan_bandwidth_bps": 9 * 10**8}
    started = solve(Facts("prophet", given, profiles, links))
    assert ordered.predicted_iteration_ns == started.predicted_iteration_ns


def test_what_hosts_need_is_no_less_in_any_order() -> None:
    """A host that needs longer than the links decides, whatever the order; else the links do."""
    one = profile(*([MEGABYTE] * 8))
    links = [[sample(10**9)]] * 2
    idle, unknown, slow = (
        solve(Facts("prophet", SETTINGS, [one, one], links, host_ns=host_ns))
        for host_ns in (10 * MS, 0, 900 * MS)
    )
    assert unknown.host is None
    assert idle.host is not None
    assert slow.host is not None
    assert idle.host.planned_ns == unknown.predicted_iteration_ns == idle.predicted_iteration_ns
    assert idle.host.gain == 1 - idle.host.planned_ns / idle.host.arrival_ns > 0.02
    assert (slow.host.gain, slow.predicted_iteration_ns) == (0, 900 * MS)


def test_order_of_arrival_is_predicted_as_fifo() -> None:
    """With fifo's partitions, if they may become so large."""
    profiles = [profile(*([MEGABYTE] * 8))] * 2
    links = [[sample(10**9)]] * 2
    fifo = solve(Facts("fifo", _core.default_settings("fifo"), profiles, links))
    found = solve(Facts("prophet", SETTINGS, profiles, links, host_ns=1)).host
    assert found is not None
    assert found.arrival_ns == fifo.predicted_iteration_ns
    small = {**SETTINGS, "partition_max_bytes": 0}
    found = solve(Facts("prophet", small, profiles, links, host_ns=1)).host
    small_fifo = solve(Facts("fifo", {"partition_bytes": 262144}, profiles, links))
    assert found is not None
    assert found.arrival_ns == small_fifo.predicted_iteration_ns


def test_a_link_that_wavers_is_taken_for_what_it_is_at_best() -> None:
    """For what limits the job, but not for the order."""
    one = profile(*([MEGABYTE] * 8))
    steady, wavering, faster = (
        solve(Facts("prophet", SETTINGS, [one], [[link]], host_ns=1))
        for link in (sample(10**9), sample(10**9, spread_bps=10**9), sample(2 * 10**9))
    )
    assert steady.host is not None
    assert wavering.host is not None
    assert faster.host is not None
    assert wavering.host.arrival_ns == faster.host.arrival_ns < steady.host.arrival_ns
    assert wavering.settings == steady.settings
    assert wavering.predicted_iteration_ns == steady.predicted_iteration_ns


def test_who_was_told_the_order_keeps_it() -> None:
    given = {**SETTINGS, "in_order": 1}
    one = profile(MEGABYTE)
    solution = solve(Facts("prophet", given, [one], [[sample(10**9)]], host_ns=900 * MS))
    assert solution.host is None
    assert "in_order" not in solution.settings


def test_a_plan_never_has_a_partition_size_and_always_says_the_window() -> None:
    solution = solved(profile(MEGABYTE, MEGABYTE), sample(10**9))
    assert set(solution.settings) == {"window_max_bytes", "plan_bandwidth_bps", "in_order"}
    no_window = Facts("p3", _core.default_settings("p3"), [profile(10, 20)], [[sample(10**9)]])
    assert solve(no_window).settings == {}


@few
@given(st.lists(st.integers(10**8, 10**10), min_size=1, max_size=200))
def test_few_links_stand_for_many_and_none_for_slower_ones(rates_bps: list[int]) -> None:
    found = [link.bandwidth_bps or 0 for link in alike([Link(bps) for bps in rates_bps])]
    assert min(found) == min(rates_bps)
    assert all(used <= bps for used, bps in zip(found, rates_bps, strict=True))
    assert all(
        bps <= 1.025 * min(rates_bps)
        for bps, used in zip(rates_bps, found, strict=True)
        if used == min(found)
    )
    assert len(set(found)) <= 12


@settings(max_examples=15, deadline=None)
@given(sizes, st.lists(st.integers(10**9, 13 * 10**8), min_size=2, max_size=12))
def test_plans_are_those_of_each_link_by_itself(drawn: list[int], rates_bps: list[int]) -> None:
    one = profile(*drawn, backward_ns=30 * MS)
    samples = [[sample(bps, server=server) for server in range(3)] for bps in rates_bps]
    facts = Facts("prophet", SETTINGS, [one] * len(samples), samples, host_ns=MS)
    found = solve(facts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "alike", list)
        slow = solve(facts)
        there_ns = predict_ns(facts, merge_profiles(facts.profiles), found.settings)
    # A tensor more or less in a window moves an iteration of few tensors by so much.
    assert found.predicted_iteration_ns == pytest.approx(slow.predicted_iteration_ns, rel=0.05)
    assert there_ns <= 1.05 * slow.predicted_iteration_ns


def test_a_large_cluster_is_planned_at_once() -> None:
    """100 workers, 400 tensors, 32 servers: without folding, it took two minutes."""
    one = profile(*[MEGABYTE // 8] * 400, backward_ns=500 * MS)
    samples = [
        [sample((10**9 + 10**6 * worker) // 32, server=server) for server in range(32)]
        for worker in range(100)
    ]
    begin_s = time.process_time()
    solve(Facts("prophet", SETTINGS, [one] * 100, samples, host_ns=MS))
    assert time.process_time() - begin_s < 10
