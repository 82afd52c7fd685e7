"""All-reduces in chunks, on meshes in this process, and what is called when."""

from __future__ import annotations

import threading
from functools import partial
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet.job import owners as owners_module
from byteprophet.job.owners import Owners
from byteprophet.torch.sync.chunks import Chunks, chunks_of
from byteprophet.torch.sync.completion import Done
from byteprophet.torch.sync.operations import Operations, Submission

from ...control.conftest import eventually
from .meshes import ranks_of

SMALL_BYTES = 64


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners_module, "MOST_CHUNK_BYTES", SMALL_BYTES)


class _AllReduce:
    """Passes each gradient to an all-reduce of its own."""

    def __init__(self, operations: Operations, *_: object) -> None:
        self._operations = operations

    def submit(self, parameter: str, gradient: torch.Tensor, _: int, done: Done) -> None:
        half = len(gradient) // 2
        ends = [threading.Event(), threading.Event()]

        def ended(number: int, error: BaseException | None) -> None:
            ends[number].set()
            if error is not None or all(end.is_set() for end in ends):
                done(error)

        parts = (gradient[:half], gradient[half:])
        submissions = {
            f"{parameter}.{number}": Submission(part, partial(ended, number))
            for number, part in enumerate(parts)
        }
        self._operations.all_reduce(parameter, submissions, (1, 2), 0)


@pytest.mark.parametrize("weights", [(2, 0, 1), (1, 3), (1, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_averages_are_those_of_equal_owners(weights: tuple[int, ...], dtype: torch.dtype) -> None:
    """Bit for bit, and in as many operations as there are chunks."""
    torch.manual_seed(3)
    gradients = [torch.randn(421).to(dtype) for _ in weights]
    found = []
    for owners in (Owners(weights), Owners.equal(len(weights))):
        with ranks_of(owners, _AllReduce, "layer") as ranks:
            tensors = [each.clone() for each in gradients]
            for rank, tensor in zip(ranks, tensors, strict=True):
                rank.submit(tensor)
            assert [rank.error() for rank in ranks] == [None] * len(ranks)
        found.append(tensors)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        torch.testing.assert_close(ours, found[0][0], rtol=0, atol=0)


def _is_missing(operations: Operations, name: str, rank: int) -> bool:
    return operations.missing(name) == [rank]


def test_what_is_late_is_named() -> None:
    """Also if many chunks are in flight."""
    with ranks_of(Owners((2, 0, 1)), _AllReduce, "layer") as ranks:
        tensors = [torch.ones(1000) for _ in ranks]
        for rank in (0, 2):
            ranks[rank].submit(tensors[rank])
        for name in ("layer.0", "layer.1"):  # once what rank 2 has sent is there
            eventually(partial(_is_missing, ranks[0].operations, name, 1))
        ranks[1].submit(tensors[1])
        assert [rank.error() for rank in ranks] == [None] * 3
        assert ranks[0].operations.missing("layer.0") == []


def test_a_rank_that_leaves_ends_all_chunks() -> None:
    with ranks_of(Owners((2, 0, 1)), _AllReduce, "layer") as ranks:
        ranks[0].submit(torch.ones(1000))
        ranks[2].exchange.close()
        assert "rank 2" in str(ranks[0].error())


@settings(max_examples=50)
@given(st.lists(st.integers(0, 90), min_size=1, max_size=6), st.booleans())
def test_chunks_are_neighbours_of_bounded_size(sizes: list[int], equal: bool) -> None:
    """Together they are all elements, in order."""
    tensors = [torch.arange(size, dtype=torch.float32) + 100 * n for n, size in enumerate(sizes)]
    with patch.object(owners_module, "MOST_CHUNK_BYTES", SMALL_BYTES):
        chunks = chunks_of(tensors, Owners((1, 1) if equal else (2, 1)))
    assert torch.equal(torch.cat([part for chunk in chunks for part in chunk]), torch.cat(tensors))
    if equal:
        assert len(chunks) == 1
        return
    assert len(chunks) == max(1, -(-sum(sizes) * 4 // SMALL_BYTES))
    assert all(sum(part.nbytes for part in chunk) <= SMALL_BYTES for chunk in chunks)


def test_ends_come_once_and_with_the_first_error() -> None:
    """A chunk that fails is waited for as one that does not; after it, nothing is called."""
    heard: list[tuple[str, BaseException | None]] = []
    error = RuntimeError("lost")
    chunks = Chunks(
        3,
        lambda e: heard.append(("reduced", e)),
        lambda: lambda e: heard.append(("gathered", e)),
        lambda e: heard.append(("ended", e)),
    )
    chunks.summed()
    chunks.gathered(error)  # its sum never came
    chunks.summed()
    assert heard == []
    chunks.gathered(None)
    chunks.gathered(RuntimeError("another"))
    assert heard == [("gathered", error), ("ended", error)]


def test_sums_and_all_gathers_end_with_their_last_chunks() -> None:
    heard: list[str] = []
    chunks = Chunks(
        2,
        lambda _: heard.append("reduced"),
        lambda: heard.append("gathers") or (lambda _: heard.append("gathered")),
        lambda _: heard.append("ended"),
    )
    chunks.summed()
    chunks.gathered(None)
    chunks.summed()
    chunks.gathered(None)
    assert heard == ["gathers", "reduced", "gathered", "ended"]
