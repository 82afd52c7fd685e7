"""An all-reduce of a bucket, chunk by chunk (``job/owners.py``).

A chunk consists of neighbouring elements of the bucket's gradients. It is all-gathered as soon as
it is averaged. The bucket has one span for all of its reduce-scatters, and one for its all-gathers.

Threads: the exchange calls ``summed`` and ``gathered``, one after the other or at once.
``_lock`` guards the counts. Callbacks run without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from torch import Tensor

from byteprophet.job.owners import Owners
from byteprophet.torch.sync.completion import Done
from byteprophet.torch.tensors import pending
from byteprophet.torch.tensors.dense import flat


def chunks_of(tensors: Sequence[Tensor], owners: Owners) -> list[list[Tensor]]:
    """The parts of ``tensors``, which are dense and of one type, in each chunk. None is empty."""
    elements = sum(tensor.numel() for tensor in tensors)
    chunks = owners.chunks(elements, sum(tensor.nbytes for tensor in tensors))
    if len(chunks) == 1:
        return [list(tensors)]
    found: list[list[Tensor]] = []
    with pending.values():  # their waits would wait for this operation itself
        flats = [flat(tensor) for tensor in tensors]
    for chunk in chunks:
        begins, parts = 0, []
        for each in flats:
            first, end = max(0, chunk.start - begins), min(len(each), chunk.stop - begins)
            if first < end:
                parts.append(each[first:end])
            begins += len(each)
        found.append(parts)
    return found


class Chunks:
    """Counts the chunks of an all-reduce, ``count`` in number.

    Args:
        count: of the chunks.
        reduced: is called when this rank has the sums of all reduce-scatters, with None.
        gathers: is called when the first all-gather begins; what it returns is called when all of
            them are over, with the first error.
        ended: is called once, when nothing of the all-reduce is in flight, with the first error.
    """

    def __init__(self, count: int, reduced: Done, gathers: Callable[[], Done], ended: Done) -> None:
        self._reducing = self._left = count
        self._reduced = reduced
        self._gathers = gathers
        self._gathering = False
        self._gathered: Done | None = None
        self._ended = ended
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def summed(self) -> None:
        """Note that this rank has its sum of a chunk, and that the chunk is being all-gathered."""
        with self._lock:
            self._reducing -= 1
            over = self._reducing == 0
            begins, self._gathering = not self._gathering, True
        if over:
            self._reduced(None)
        if begins:  # before this chunk is all-gathered, and so before all chunks are over
            self._gathered = self._gathers()

    def gathered(self, error: BaseException | None) -> None:
        """Note that an all-gather is over, or will not begin."""
        with self._lock:
            self._error = self._error or error
            self._left -= 1
            over = self._left == 0
        if over:
            if self._gathered is not None:
                self._gathered(self._error)
            self._ended(self._error)
