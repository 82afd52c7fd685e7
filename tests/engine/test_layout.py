"""Which server a partition goes to is BytePS' choice, by the numbers it gives to tensors."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from byteprophet.engine.layout import layout, partitions_of, server_of
from byteprophet.workload import load

SIZES = (4096, 3 << 20, 100_000)


@given(numbers=st.permutations(range(3)), servers=st.integers(1, 5))
def test_numbers_decide_on_servers_and_on_nothing_else(numbers: list[int], servers: int) -> None:
    plain = partitions_of(SIZES, 1 << 18, servers)
    parts = partitions_of(SIZES, 1 << 18, servers, tuple(numbers))
    assert parts.key.tolist() == plain.key.tolist()
    assert parts.size_bytes.tolist() == plain.size_bytes.tolist()
    for key, server in zip(parts.key.tolist(), parts.server.tolist(), strict=True):
        assert server == server_of(numbers[key >> 16] << 16 | key & 0xFFFF, servers)


def test_a_workloads_gradients_are_numbered_by_name() -> None:
    """As BytePS' optimizer for PyTorch declares them."""
    workload = load("resnet18")
    by_name = sorted(tensor.name for tensor in workload.tensors)
    arrays = layout(workload, 1 << 30, 3)
    assert arrays.server.tolist() == [
        server_of(by_name.index(tensor.name) << 16, 3) for tensor in workload.tensors
    ]
