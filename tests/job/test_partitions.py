"""Which server a partition goes to is BytePS' choice, by the numbers it gives to tensors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.errors import UserError
from byteprophet.job.partitions import PAGE_BYTES, numbers_of, partitions_of, server_of
from byteprophet.job.strategy import Keys
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
    sizes = tuple(tensor.size_bytes for tensor in workload.tensors)
    parts = partitions_of(sizes, 1 << 30, 3, numbers_of([t.name for t in workload.tensors]))
    assert parts.server.tolist() == [
        server_of(by_name.index(tensor.name) << 16, 3) for tensor in workload.tensors
    ]


def test_on_three_and_eleven_servers_the_hash_is_uneven() -> None:
    """Only a key's last digit counts there, and tensors of one partition have even keys."""
    for servers, used in ((3, [2, 1, 2]), (11, [1] * 5)):
        of_digits = [server_of(digit, servers) for digit in (0, 2, 4, 6, 8)]
        assert sorted(map(of_digits.count, set(of_digits))) == sorted(used)
        for number in range(200):
            key = number << 16
            assert server_of(key, servers) == server_of(key % 10, servers)


@st.composite
def keys_of_tensors(draw: st.DrawFn) -> tuple[int, tuple[tuple[int, Keys], ...]]:
    """A number of servers, and keys of some of the tensors."""
    servers = draw(st.integers(1, 4))
    numbers = st.lists(st.integers(0, servers - 1), max_size=5)
    own = draw(
        st.dictionaries(st.integers(0, 2), st.tuples(st.integers(0, 1 << 22), numbers), max_size=3)
    )
    keys = ((place, Keys(str(place), size, tuple(on))) for place, (size, on) in own.items())
    return servers, tuple(keys)


@given(drawn=keys_of_tensors())
def test_keys_change_what_they_name_and_nothing_else(
    drawn: tuple[int, tuple[tuple[int, Keys], ...]],
) -> None:
    servers, keys = drawn
    plain = partitions_of(SIZES, 1 << 18, servers)
    parts = partitions_of(SIZES, 1 << 18, servers, keys=keys)
    given_keys = dict(keys)
    for place, size in enumerate(SIZES):
        own = given_keys.get(place, Keys(""))
        mine, was = parts.tensor == place, plain.tensor == place
        sizes = parts.size_bytes[mine].tolist()
        assert sum(sizes) == size
        if own.partition_bytes:
            assert all(
                own.partition_bytes <= each < own.partition_bytes + PAGE_BYTES
                for each in sizes[:-1]
            )
        else:
            assert sizes == plain.size_bytes[was].tolist()
        assert parts.key[mine].tolist() == [place << 16 | part for part in range(len(sizes))]
        for part, server in enumerate(parts.server[mine].tolist()):
            if own.servers:
                assert server == own.servers[part % len(own.servers)]
            else:
                assert server == server_of(place << 16 | part, servers)


def test_a_server_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match=r"tensor 'w' is placed on server 2, but the job has 2 "):
        partitions_of(SIZES, 1 << 18, 2, keys=((1, Keys("w", 0, (0, 2))),))


def test_partitions_without_bytes_are_refused() -> None:
    with pytest.raises(UserError, match="partition_bytes is 0"):
        partitions_of((4096, 8192), 0, 1)
    sized = Keys("a", 4096, ())
    with pytest.raises(UserError, match="partition_bytes is 0"):
        partitions_of((4096, 8192), 0, 1, (), ((0, sized),))


@pytest.mark.parametrize(("sizes", "largest"), [((2**50,), 2**38), ((2**28,) * 20, 2**16)])
def test_more_partitions_than_there_can_be_are_refused(
    sizes: tuple[int, ...], largest: int
) -> None:
    with pytest.raises(UserError, match=f"there would be .*, {largest} of one tensor: at most"):
        partitions_of(sizes, 1, 1)
