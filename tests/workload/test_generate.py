"""Generated workloads: always valid, the same for a seed everywhere, and of every kind."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.errors import UserError
from byteprophet.workload import load, parse_toml, to_toml
from byteprophet.workload.generate import generate, seed_in

seeds = st.integers(0, 10**18 - 1)


@given(seeds)
def test_valid_and_of_a_size_that_can_be_run(seed: int) -> None:
    workload = generate(seed)  # its constructor refuses what is not valid
    assert 2 <= len(workload.tensors) <= 600
    assert 8e6 <= workload.size_bytes <= 161e6
    assert 0.199e9 <= workload.forward_ns + workload.backward_ns <= 1.5e9
    assert workload.forward_ns > 0
    assert 0.24 <= workload.backward_ns / workload.forward_ns <= 6.1


@given(seeds)
def test_the_same_seed_is_the_same_workload_also_through_a_file(seed: int) -> None:
    assert generate(seed) == load(f"random:{seed}")
    assert parse_toml(to_toml(generate(seed)), "x") == generate(seed)


def test_the_same_on_every_machine() -> None:
    """Results are kept under a seed: what it stands for must never change."""
    text = "".join(to_toml(generate(seed)) for seed in range(20))
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest.startswith("f57381c9488cef94")


def test_every_kind_comes() -> None:
    workloads = [generate(seed) for seed in range(200)]
    sizes = [[tensor.size_bytes for tensor in workload.tensors] for workload in workloads]
    largest = [max(range(len(row)), key=row.__getitem__) for row in sizes]
    giant = [max(row) > 0.3 * sum(row) for row in sizes]
    assert any(big and at == 0 for big, at in zip(giant, largest, strict=True))
    assert any(
        big and at == len(row) - 1 for big, at, row in zip(giant, largest, sizes, strict=True)
    )
    assert any(
        big and 0 < at < len(row) - 1 for big, at, row in zip(giant, largest, sizes, strict=True)
    )
    assert any(sum(size < 100_000 for size in row) >= 200 for row in sizes)
    assert any(max(row) < 2 * min(row) for row in sizes)
    assert any(max(row) > 10_000 * min(row) for row in sizes)
    ratios = [workload.backward_ns / workload.forward_ns for workload in workloads]
    assert min(ratios) < 0.5
    assert max(ratios) > 4
    lengths = [{len(burst) for burst in workload.bursts()} for workload in workloads]
    assert any(found == {1} for found in lengths)
    assert any(len(workload.bursts()) == 1 for workload in workloads)
    assert any(len(found) > 4 for found in lengths)
    assert any(tensor.forward_ns == 0 for workload in workloads for tensor in workload.tensors)


@pytest.mark.parametrize("name", ["random:", "random:x", "random:-1", "random:²", "random:1.5"])
def test_a_seed_is_a_whole_number(name: str) -> None:
    with pytest.raises(UserError, match="seed"):
        load(name)


def test_other_names_have_no_seed() -> None:
    assert seed_in("resnet50") is None
    assert seed_in("./random:7") is None
