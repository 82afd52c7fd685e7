"""Averages sparse gradients over all ranks, row by row.

``allreduce/rows.py`` describes which rows travel how, and why. One gradient takes these steps, of
which the second is rare:

1. All ranks' blocks of row numbers are all-gathered.
2. Numbers that did not fit into blocks are all-gathered.
3. Rows of one rank are divided and all-gathered; rows of several ranks are all-reduced.
4. The gradient gets the union of the rows.

What all ranks do next follows from what all of them have received, so they do the same without any
agreement of its own. The rows that several ranks have are summed in rank order by their owners, and
averaged, as dense gradients are. The others are multiplied by the same factor. So an average has
the bits of a dense one, except that a zero may have another sign.

Threads: gradients are submitted in training and autograd threads. All else runs in the worker, one
step of one gradient at a time: the exchange's callbacks only put the next step there. Parameters
do not wait for each other, so ranks may submit them in different orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from byteprophet.allreduce.rows import block_words
from byteprophet.job.owners import Owners
from byteprophet.tensor_names import gradient_name
from byteprophet.torch.sync import row_blocks
from byteprophet.torch.sync.completion import Done
from byteprophet.torch.sync.operations import Operations, Submission
from byteprophet.torch.sync.worker import Worker
from byteprophet.torch.tensors.sparse import of_rows

_HALVES = (torch.float16, torch.bfloat16)


class Rows:
    """Averages the sparse gradients of one optimizer, by its ``operations``, in ``worker``."""

    def __init__(self, operations: Operations, rank: int, size: int, worker: Worker) -> None:
        self.operations = operations
        self.rank = rank
        self.size = size
        self.worker = worker
        self.words: dict[str, int] = {}
        """How many words the next blocks have, by parameter. The same on all ranks."""

    def submit(self, parameter: str, gradient: Tensor, iteration: int, done: Done) -> None:
        """Replace ``gradient`` by its average over all ranks, then call ``done``.

        A dense gradient is averaged, too, if it is dense on all ranks. ``iteration`` is for
        recorded spans.
        """
        average = _Average(self, parameter, gradient, iteration, done)
        self.worker.put(lambda: average.run(average.begin))


@dataclass(frozen=True)
class _Places:
    """Where rows are, once all ranks' numbers are known.

    Attributes:
        union: the numbers of all rows, which ascend. *Places* are places in it.
        alone: the places of the rows of one rank, rank by rank.
        alone_counts: how many of these each rank has.
        shared: the places of the rows of several ranks, which ascend.
        own_shared: for each row of this rank, whether it is shared.
        own_numbers: for each shared row of this rank, its number among all shared ones.
    """

    union: Tensor
    alone: Tensor
    alone_counts: list[int]
    shared: Tensor
    own_shared: Tensor
    own_numbers: Tensor

    @classmethod
    def of(cls, numbers: Sequence[Tensor], rank: int) -> _Places:
        """``numbers``: those of each rank's rows; ``rank``: this one."""
        counts = [len(each) for each in numbers]
        union, place, ranks = torch.unique(
            torch.cat(list(numbers)), return_inverse=True, return_counts=True
        )
        of_several = ranks > 1
        is_shared = of_several[place]
        own_shared = is_shared.split_with_sizes(counts)[rank]
        among_shared = of_several.cumsum(0) - 1
        return cls(
            union,
            place[~is_shared],
            [int((~each).sum()) for each in is_shared.split_with_sizes(counts)],
            of_several.nonzero().flatten(),
            own_shared,
            among_shared[place.split_with_sizes(counts)[rank][own_shared]],
        )


class _Average:
    """One gradient in one iteration. The worker calls all methods but the constructor."""

    def __init__(
        self, rows: Rows, parameter: str, gradient: Tensor, iteration: int, done: Done
    ) -> None:
        self._rows = rows
        self._parameter = parameter
        self._gradient = gradient
        self._table_rows = gradient.shape[0]
        self._iteration = iteration
        self._position = rows.operations.position(0)
        self._done: Done | None = done

    def run(self, step: Callable[[], None]) -> None:
        """Run a step. If it fails, the average fails."""
        try:
            with torch.no_grad():
                step()
        except Exception as error:  # noqa: BLE001 (the waiting thread raises it)
            self._end(error)

    def begin(self) -> None:
        """Step 1."""
        rank, size = self._rows.rank, self._rows.size
        words = self._rows.words.get(self._parameter, block_words(0, self._table_rows))
        self._blocks = torch.zeros((size, 1 + words), dtype=torch.int32)
        if self._gradient.is_sparse:
            mine = self._gradient.coalesce()
            self._values = mine._values()
            numbers = mine._indices()[0]
            self._overflow = row_blocks.fill(self._blocks[rank], numbers, self._table_rows)
        else:
            self._blocks[rank, 0] = row_blocks.DENSE
        self._all_gather("row numbers", self._blocks, [1] * size, self._blocks_came)

    def _blocks_came(self) -> None:
        """Step 2, if it is needed."""
        counts = self._blocks[:, 0].tolist()
        dense = [rank for rank, count in enumerate(counts) if count == row_blocks.DENSE]
        if len(dense) == len(counts):
            self._all_reduce(self._gradient, lambda: self._end(None))
            return
        if dense:
            other = counts.index(max(counts))
            kind = "sparse" if counts[other] else "without rows"
            raise RuntimeError(
                f"it is dense on rank {dense[0]} and {kind} on rank {other}: it must be the same "
                "on all ranks"
            )
        self._rows.words[self._parameter] = block_words(max(counts), self._table_rows)
        missing = row_blocks.overflow(self._blocks, self._table_rows)
        numbers = torch.empty(sum(missing), dtype=torch.int32)
        more = numbers.split_with_sizes(missing)
        more[self._rows.rank].copy_(self._overflow)
        if sum(missing):
            self._all_gather("more row numbers", numbers, missing, lambda: self._send_rows(more))
        else:
            self._send_rows(more)

    def _send_rows(self, more: Sequence[Tensor]) -> None:
        """Step 3. ``more``: the numbers of each rank that did not fit into its block."""
        rank, values, blocks = self._rows.rank, self._values, zip(self._blocks, more, strict=True)
        numbers = [row_blocks.numbers_in(*each, self._table_rows) for each in blocks]
        places = self._places = _Places.of(numbers, rank)
        row = values.shape[1:]
        self._alone = values.new_empty((len(places.alone), *row))
        own = self._alone.split_with_sizes(places.alone_counts)[rank]
        own.copy_(_divided(values[~places.own_shared], self._rows.size))
        self._shared = values.new_zeros((len(places.shared), *row))
        self._shared[places.own_numbers] = values[places.own_shared]
        del self._values
        self._parts = sum(part.numel() > 0 for part in (self._alone, self._shared))
        if not self._parts:
            self._end_with_rows()
        if self._alone.numel():
            self._all_gather("rows", self._alone, places.alone_counts, self._part_came)
        if self._shared.numel():
            self._all_reduce(self._shared, self._part_came)

    def _part_came(self) -> None:
        self._parts -= 1
        if not self._parts:
            self._end_with_rows()

    def _end_with_rows(self) -> None:
        """Step 4."""
        union = self._places.union
        values = self._alone.new_empty((len(union), *self._alone.shape[1:]))
        values[self._places.alone] = self._alone
        values[self._places.shared] = self._shared
        self._gradient.copy_(of_rows(union, values, self._gradient))
        self._end(None)

    def _all_gather(
        self, what: str, tensor: Tensor, weights: Sequence[int], then: Callable[[], None]
    ) -> None:
        self._rows.operations.all_gather(
            self._label(what),
            self._submissions(tensor, then),
            self._position,
            self._iteration,
            Owners(tuple(weights)),
        )

    def _all_reduce(self, tensor: Tensor, then: Callable[[], None]) -> None:
        self._rows.operations.all_reduce(
            self._label("shared rows"),
            self._submissions(tensor, then),
            (self._position, self._position),
            self._iteration,
        )

    def _label(self, what: str) -> str:
        # The brackets tell these spans from those of buckets, whose labels end with a number.
        return f"{what} ({self._parameter})"

    def _submissions(self, tensor: Tensor, then: Callable[[], None]) -> dict[str, Submission]:
        def done(error: BaseException | None) -> None:
            def go_on() -> None:
                if error is not None:
                    self._end(error)
                else:
                    self.run(then)

            self._rows.worker.put(go_on)

        return {gradient_name(self._parameter): Submission(tensor, done)}

    def _end(self, error: BaseException | None) -> None:
        done, self._done = self._done, None
        if done is not None:  # the other part has not failed before
            done(error)


def _divided(values: Tensor, size: int) -> Tensor:
    """``values`` times 1 / ``size``, rounded as native/exchange/sums.cc rounds averages."""
    if values.dtype in _HALVES:
        return (values.to(torch.float32) * (1.0 / size)).to(values.dtype)
    return values * (1.0 / size)
