"""Averages gradients that travel compressed, each on its own.

A gradient takes these steps: the error that was kept of the last one is added; its compressor makes
a form of it; the form is exchanged, once or twice; all ranks compute the same average of it; what
was not sent becomes the error. ``torch/compressors`` has the compressors.

A gradient that is not finite makes the average so on all ranks, as without compression. No rank
then keeps an error that is not finite: it keeps the one from before.

*With delayed averages* (``job/staleness.py``), a parameter's gradient may be submitted while its
last one travels. It is compressed once that one's average has ended, because only then the error is
known that is to be added. So what travels is the same as without delays, in the same order; only
steps use the averages later. Every rank has submitted the earlier gradient before, so this cannot
block.

Threads: gradients are submitted in training and autograd threads. All else runs in the worker, one
step of one gradient at a time: the exchange's callbacks only put the next step there. Only the
worker uses the queues of averages. Parameters do not wait for each other, so ranks may submit them
in different orders.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable

import torch
from torch import Tensor

from byteprophet.job.compression import Compressor
from byteprophet.job.owners import Owners
from byteprophet.observe.span_log import process_spans
from byteprophet.tensor_names import gradient_name
from byteprophet.timeline.tables import Kind
from byteprophet.torch.compressors.make import steps_of
from byteprophet.torch.compressors.steps import AllGather, AllReduce, Averaged, Steps, Turn
from byteprophet.torch.sync.completion import Done
from byteprophet.torch.sync.compression_state import CompressionState, Kept
from byteprophet.torch.sync.operations import Operations, Submission
from byteprophet.torch.sync.worker import Worker

COMPRESSING, AVERAGING = "compressing", "averaging"
"""What the worker does with a gradient before its form travels, and once forms have arrived; the
beginnings of its spans' names."""


class Compressing:
    """Averages the compressed gradients of one optimizer, by its ``operations``, in ``worker``."""

    def __init__(self, operations: Operations, rank: int, ranks: int, worker: Worker) -> None:
        self.operations = operations
        self.worker = worker
        self.equal = Owners.equal(ranks)
        self.state = CompressionState(rank, ranks, self._gather_errors)
        self._averages: defaultdict[str, deque[_Average]] = defaultdict(deque)

    def take(self, parameter: str, compressor: Compressor, shape: tuple[int, ...]) -> None:
        """Take a parameter, unless it is known. No gradient may be in flight."""
        known = self.state.of.get(parameter)
        if known is None or known.shape != shape:
            self.state.of[parameter] = Kept(compressor, shape)

    def submit(
        self, parameter: str, gradient: Tensor, iteration: int, done: Done, delay: int = 0
    ) -> None:
        """Replace ``gradient``, which is contiguous, by its average, then call ``done``.

        ``iteration`` is for recorded spans. ``delay``: how many iterations later the average is
        used.
        """
        average = _Average(self, parameter, gradient, iteration, done, delay)
        self.worker.put(lambda: self._enqueue(parameter, average))

    def _enqueue(self, parameter: str, average: _Average) -> None:
        """Begin ``average``, or let it wait for the one of an earlier iteration."""
        queue = self._averages[parameter]
        queue.append(average)
        if len(queue) == 1:
            average.begin()

    def ended(self, parameter: str) -> None:
        """Begin the next average of a parameter, if one waits. The worker calls this."""
        queue = self._averages[parameter]
        queue.popleft()
        if queue:
            queue[0].begin()

    def _gather_errors(self, parameter: str, errors: Tensor, done: Done) -> None:
        self.operations.all_gather(
            f"errors ({parameter})",
            {gradient_name(parameter): Submission(errors, done)},
            self.operations.position(0),
            self.operations.iteration,
            self.equal,
        )


class _Average:
    """One gradient in one iteration. The worker calls all methods but the constructor."""

    def __init__(
        self,
        all_: Compressing,
        parameter: str,
        gradient: Tensor,
        iteration: int,
        done: Done,
        delay: int,
    ) -> None:
        self._all = all_
        self._parameter = parameter
        self._gradient = gradient
        self._iteration = iteration
        self._position = all_.operations.position(0, delay)
        self._done: Done | None = done

    def begin(self) -> None:
        """Compress the gradient, and begin to exchange it."""
        self._run(lambda: self._exchange(next(self._begun())), COMPRESSING)

    @property
    def _kept(self) -> Kept:
        return self._all.state.of[self._parameter]

    def _run(self, step: Callable[[], None], what: str) -> None:
        """Run a step. If it fails, the average fails. If it was the last one, the average ends.

        If spans are recorded, it becomes one, named after ``what`` it does.
        """
        begin_ns = process_spans.clock()
        try:
            with torch.no_grad():
                try:
                    step()
                    self._record(what, begin_ns)
                    return
                except StopIteration as over:
                    self._keep(over.value)
                    self._record(what, begin_ns)
        except Exception as error:  # noqa: BLE001 (the waiting thread raises it)
            self._end(error)
        else:
            self._end(None)

    def _record(self, what: str, begin_ns: int) -> None:
        if process_spans.on:
            process_spans.add(
                Kind.COMPUTE,
                f"{what} {self._parameter}",
                begin_ns,
                process_spans.clock(),
                iteration=self._iteration,
            )

    def _begun(self) -> Steps:
        kept, state = self._kept, self._all.state
        kept.remember()
        values = self._gradient.flatten().clone()
        if kept.error is not None:
            values += kept.error
        if not _is_finite(values):
            values.fill_(math.nan)
        self._steps = steps_of(
            kept.compressor,
            Turn(
                self._parameter,
                values,
                kept.shape,
                kept.steps,
                state.rank,
                state.ranks,
                kept.common,
            ),
        )
        return self._steps

    def _exchange(self, wanted: AllGather | AllReduce) -> None:
        operations, position = self._all.operations, self._position
        # The brackets tell these spans from those of buckets, whose labels end with a number.
        label = f"{self._kept.compressor.type} ({self._parameter})"
        if isinstance(wanted, AllGather):
            own, state = wanted.own, self._all.state
            forms = torch.zeros((state.ranks, own.numel()), dtype=own.dtype)
            forms[state.rank] = own
            equal = self._all.equal
            operations.all_gather(label, self._sent(forms), position, self._iteration, equal)
        else:
            positions = position, position
            operations.all_reduce(label, self._sent(wanted.own), positions, self._iteration)

    def _sent(self, tensor: Tensor) -> dict[str, Submission]:
        def go_on(error: BaseException | None) -> None:
            if error is not None:
                self._end(error)
            else:
                self._run(lambda: self._exchange(self._steps.send(tensor)), AVERAGING)

        def done(error: BaseException | None) -> None:
            self._all.worker.put(lambda: go_on(error))

        return {gradient_name(self._parameter): Submission(tensor, done)}

    def _keep(self, found: Averaged) -> None:
        kept = self._kept
        self._gradient.copy_(found.average.view(self._gradient.shape))
        if kept.compressor.error_feedback and _is_finite(found.residual):
            kept.error = found.residual
        kept.steps += 1

    def _end(self, error: BaseException | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(error)
            self._all.ended(self._parameter)


def _is_finite(values: Tensor) -> bool:
    return math.isfinite(float(values.abs().max()))
