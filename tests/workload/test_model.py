"""The types: validation, derived times, rescaling."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.errors import UserError
from byteprophet.workload import Tensor, Workload
from byteprophet.workload.model import distribute


def tensor(name: str = "a", **fields: Any) -> Tensor:
    return Tensor(**{"name": name, "size_bytes": 8, "forward_ns": 1, "backward_ns": 2, **fields})


def workload(*tensors: Tensor) -> Workload:
    return Workload("w", 1, tensors)


def test_totals() -> None:
    job = workload(tensor("a", size_bytes=4), tensor("b", forward_ns=10, backward_ns=30))
    assert (job.size_bytes, job.forward_ns, job.backward_ns) == (12, 11, 32)
    assert job.tensors[1].elements == 2


def test_backward_runs_in_reverse() -> None:
    job = workload(
        tensor("a", backward_ns=5), tensor("b", backward_ns=70), tensor("c", backward_ns=300)
    )
    assert job.ready_ns() == (375, 370, 300)


def test_a_burst_is_ready_with_its_last_layer_of_backward() -> None:
    job = workload(
        tensor("a", backward_ns=1, burst=7),
        tensor("b", backward_ns=10),
        tensor("c", backward_ns=100, burst=3),
        tensor("d", backward_ns=1000, burst=3),
        tensor("e", backward_ns=10000),
        tensor("f", backward_ns=100000),
    )
    assert job.bursts() == (range(1), range(1, 2), range(2, 4), range(4, 5), range(5, 6))
    assert job.ready_ns() == (111111, 111110, 111100, 111100, 110000, 100000)


def test_neighbouring_bursts_stay_apart() -> None:
    job = workload(tensor("a", burst=0), tensor("b", burst=1), tensor("c", burst=1))
    assert job.bursts() == (range(1), range(1, 3))


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=50), st.integers(0, 10**15))
def test_distribute_is_exact_and_fair(weights: list[int], total: int) -> None:
    weights[0] += 1
    shares = distribute(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share * sum(weights) - total * weight) < sum(weights)


@given(st.integers(0, 2**50))
def test_scaled_takes_exactly_the_time_asked_for(compute_ns: int) -> None:
    job = workload(tensor("a", forward_ns=1, backward_ns=3), tensor("b", forward_ns=7), tensor("c"))
    scaled = job.scaled(compute_ns)
    assert scaled.forward_ns + scaled.backward_ns == compute_ns
    assert [t.name for t in scaled.tensors] == ["a", "b", "c"]
    assert scaled.size_bytes == job.size_bytes


def test_scaling_by_one_changes_nothing() -> None:
    job = workload(tensor("a", forward_ns=17, backward_ns=5), tensor("b", forward_ns=0))
    assert job.scaled(job.forward_ns + job.backward_ns) == job


def test_nothing_cannot_be_rescaled() -> None:
    job = workload(tensor(forward_ns=0, backward_ns=0))
    with pytest.raises(UserError, match="workload 'w' has no compute times"):
        job.scaled(10)


@pytest.mark.parametrize("compute_ns", [-1, 2**50 + 1, 1.5, True])
def test_scaled_refuses(compute_ns: Any) -> None:
    with pytest.raises(UserError, match="compute_ns must be an integer"):
        workload(tensor()).scaled(compute_ns)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size_bytes": -5}, "size_bytes must be a positive multiple of 4, got -5"),
        ({"size_bytes": 0}, "size_bytes must be a positive multiple of 4, got 0"),
        ({"size_bytes": 6}, "size_bytes must be a positive multiple of 4, got 6"),
        ({"size_bytes": 8.0}, "size_bytes must be a positive multiple of 4, got 8.0"),
        ({"size_bytes": 2**60}, "size_bytes must be an integer from 4 to 2^50"),
        ({"forward_ns": -1}, "forward_ns must be an integer from 0 to 2^50, got -1"),
        ({"backward_ns": "3"}, "backward_ns must be an integer from 0 to 2^50, got '3'"),
        ({"burst": True}, "burst must be an integer from 0 to 2^50, got True"),
        ({"name": "a"}, "name is already that of tensor 1, names must be unique"),
    ],
)
def test_a_bad_tensor_is_named(fields: dict[str, Any], message: str) -> None:
    name = fields.pop("name", "fc.weight")
    with pytest.raises(UserError) as raised:
        workload(tensor("a"), tensor(name, **fields))
    assert str(raised.value).startswith(f"tensor 2 ('{name}'): {message}")


@pytest.mark.parametrize("name", ["", "  ", "a\nb", 3])
def test_bad_names(name: Any) -> None:
    with pytest.raises(UserError, match=r"^tensor 1: name must be printable text"):
        workload(tensor(name))
    with pytest.raises(UserError, match=r"^name must be printable text"):
        Workload(name, 1, (tensor(),))


@pytest.mark.parametrize("between", [None, 2])
def test_a_burst_cannot_be_taken_up_again(between: int | None) -> None:
    with pytest.raises(UserError, match=r"^tensor 3 \('c'\): burst 1 is interrupted"):
        workload(tensor("a", burst=1), tensor("b", burst=between), tensor("c", burst=1))


def test_a_workload_has_tensors_and_a_batch() -> None:
    with pytest.raises(UserError, match="at least one tensor"):
        Workload("w", 1, ())
    with pytest.raises(UserError, match="batch_size must be an integer from 1"):
        Workload("w", 0, (tensor(),))


@given(st.integers(1, 40), st.integers(1, 45))
def test_stepwise_counts_bursts_from_where_backward_begins(tensors: int, length: int) -> None:
    workload = Workload("w", 1, tuple(Tensor(f"t{n}", 4, 1, 2) for n in range(tensors)))
    bursts = workload.stepwise(length).bursts()
    assert all(len(burst) == length for burst in bursts[1:])
    assert 1 <= len(bursts[0]) <= length
    assert sum(len(burst) for burst in bursts) == tensors
