"""The operations of one optimizer on the exchange: their numbers, positions and spans.

All ranks give an operation the same number. It is a hash of the operation's label, its optimizer,
and how many operations of that label came before. Positions determine the order: earlier iterations
go first, then smaller places.

Threads: any thread may call the methods. ``_lock`` guards the counts. It is held while an operation
is started, and taken before the exchange's own locks. It is not held during callbacks, which the
exchange calls without locks.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from torch import Tensor

from byteprophet.job.owners import Owners
from byteprophet.job.staleness import MOST_STEPS
from byteprophet.observe.span_log import process_spans
from byteprophet.timeline.tables import Kind
from byteprophet.torch.sync.bucket_layout import PLACES
from byteprophet.torch.sync.chunks import Chunks, chunks_of
from byteprophet.torch.sync.completion import Done
from byteprophet.torch.sync.exchange import Exchange

Error = BaseException | None
_MOST_IN_FLIGHT = 2 * (MOST_STEPS + 1)
"""Operations of one gradient: two in each iteration whose average is not used yet."""


@dataclass(frozen=True)
class Submission:
    """A tensor that takes part in operations until ``done`` is called."""

    tensor: Tensor
    done: Done


Submissions = Mapping[str, Submission]
"""Submissions by the name of their gradient (``tensor_names.py``) or message."""


class Operations:
    """Starts the operations of one optimizer, which has the number ``optimizer`` in this process.

    ``owners``: of the shards of its gradients and parameters. Messages have equal owners.
    """

    def __init__(self, exchange: Exchange, optimizer: int, owners: Owners) -> None:
        self._exchange = exchange
        self._optimizer = optimizer
        self._owners = owners
        self._equal = Owners.equal(exchange.size)
        self._lock = threading.Lock()
        self._iteration = 0
        self._counts: Counter[str] = Counter()  # of operations, by label
        self._latest: dict[str, tuple[int, ...]] = {}  # operation numbers, by name of submission

    def begin_iteration(self) -> int:
        """Begin the next iteration, to which positions refer from now on. Returns its number."""
        with self._lock:
            self._iteration += 1
            return self._iteration

    @property
    def iteration(self) -> int:
        """The number of the iteration that began last; 0 before the first one."""
        return self._iteration

    def position(self, place: int, delay: int = 0) -> int:
        """The position of ``place`` in this iteration, or in the one ``delay`` iterations later.

        If operations begin in the order of rank 0's requests, a delayed one is among the last of
        this iteration instead: another rank may wait for it before it begins the next one.
        """
        if delay and self._exchange.in_order:
            return self._iteration * PLACES + PLACES // 2 + place
        return (self._iteration + delay) * PLACES + place

    def missing(self, name: str) -> list[int]:
        """The ranks whose part of the oldest operation in flight of ``name`` has not arrived.

        Empty if that is not known.
        """
        with self._lock:
            numbers = self._latest.get(name, ())
        late = (list(self._exchange.missing(number)) for number in numbers)
        return next(filter(None, late), [])

    def reduce_scatter(
        self, label: str, submissions: Submissions, position: int, iteration: int
    ) -> None:
        """Replace this rank's shard of each gradient by the average, then call each ``done``."""
        label = f"reduce-scatter {label}"
        with self._lock:
            number = self._number(label, submissions)
            tensors = [submission.tensor for submission in submissions.values()]
            done = _recorded(label, submissions, iteration, lambda e: _end(submissions, e))
            self._exchange.reduce_scatter(number, tensors, self._owners, True, position, done)

    def all_gather(
        self,
        label: str,
        submissions: Submissions,
        position: int,
        iteration: int,
        owners: Owners | None = None,
    ) -> None:
        """Replace the other ranks' shards of each tensor by theirs, then call each ``done``.

        ``owners``: of these shards, if they are not those of the optimizer's.
        """
        with self._lock:
            number = self._number(label, submissions)
            tensors = [submission.tensor for submission in submissions.values()]
            done = _recorded(label, submissions, iteration, lambda e: _end(submissions, e))
            self._exchange.all_gather(number, tensors, owners or self._owners, position, done)

    def all_reduce(
        self, label: str, submissions: Submissions, positions: tuple[int, int], iteration: int
    ) -> None:
        """Replace each gradient by the average, by a reduce-scatter and then an all-gather.

        ``positions`` holds the positions of the two. With unequal owners, this is done chunk by
        chunk. Chunks have the same positions, and begin in their order.
        """
        self._all_reduce(label, submissions, self._owners, True, positions, iteration)

    def sum_message(self, name: str, message: Submission, average: bool = False) -> None:
        """Replace the message called ``name`` by its sum, before all other operations.

        With ``average``, it becomes the average, which integers do not have.
        """
        iteration = process_spans.iteration
        self._all_reduce(name, {name: message}, self._equal, average, (0, 0), iteration)

    def _all_reduce(
        self,
        label: str,
        submissions: Submissions,
        owners: Owners,
        average: bool,
        positions: tuple[int, int],
        iteration: int,
    ) -> None:
        chunks = chunks_of([each.tensor for each in submissions.values()], owners)
        most = _MOST_IN_FLIGHT * len(chunks)

        def recorded(what: str) -> Done:
            return _recorded(f"{what} {label}", submissions, iteration, lambda _: None)

        all_ = Chunks(
            len(chunks),
            recorded("reduce-scatter"),
            lambda: recorded("all-gather"),
            lambda error: _end(submissions, error),
        )
        summed = all_.summed if process_spans.on else None  # else nobody asks when that was
        for place, chunk in enumerate(chunks):
            with self._lock:
                numbers = (
                    self._number(f"reduce-scatter {label} {place}", submissions, most),
                    self._number(f"all-gather {label} {place}", submissions, most),
                )
                self._exchange.all_reduce(
                    numbers, chunk, owners, average, positions, summed, all_.gathered
                )

    def _number(
        self, label: str, submissions: Submissions, most_in_flight: int = _MOST_IN_FLIGHT
    ) -> int:
        """The number of a new operation. REQUIRES: ``_lock`` is held."""
        self._counts[label] += 1
        text = f"{self._optimizer} {label} {self._counts[label]}"
        number = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
        for name in submissions:
            self._latest[name] = (*self._latest.get(name, ()), number)[-most_in_flight:]
        return number


def _end(submissions: Submissions, error: Error) -> None:
    for submission in submissions.values():
        submission.done(error)


def _recorded(label: str, submissions: Submissions, iteration: int, done: Done) -> Done:
    """Extend ``done`` so that it also records a span, from now on, if spans are recorded."""
    if not process_spans.on:
        return done
    begin_ns = process_spans.clock()
    size_bytes = sum(submission.tensor.nbytes for submission in submissions.values())

    def recorded(error: Error) -> None:
        process_spans.add(
            Kind.COLLECTIVE,
            label,
            begin_ns,
            process_spans.clock(),
            iteration=iteration,
            size_bytes=size_bytes,
            lane=process_spans.lane(label),
        )
        done(error)

    return recorded
