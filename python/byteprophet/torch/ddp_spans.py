"""Spans of the collectives of ``torch.nn.parallel.DistributedDataParallel``, one per bucket.

A communication hook does what DistributedDataParallel does without one, the same operations on the
same memory, and notes when a bucket was complete and when its sum was back (with NCCL: when it was
queued). The wait from the last bucket of an iteration to the last sum is a span, too.

A hook can be registered once per model and never removed, so ours stays and, when nobody records,
only reduces. With ``gradient_as_bucket_view`` and a number of ranks that is no power of two, the
first iteration may differ in the last bit: there DistributedDataParallel multiplies by the
reciprocal once and divides from then on.

Threads: buckets become complete in autograd's; sums come back in the process group's, one or more.

No ``from __future__ import annotations`` here: DistributedDataParallel checks a hook's annotations.
"""

import sys
import threading
import weakref
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from byteprophet.observe.span_log import SpanLog
from byteprophet.timeline.tables import Kind


class Buckets:
    """The collectives of one model; ``log`` is where they are recorded, if anywhere."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self.log: SpanLog | None = None
        self.group: Any = model.process_group
        self.size = distributed.get_world_size(self.group)
        self.divides = bool(model.gradient_as_bucket_view)
        self.under_way = 0  # collectives; with the two below, under the lock
        self.waits_since_ns = 0  # 0: there are buckets to come
        self.waiting: Any = None  # the thread
        self.lock = threading.Lock()


_known: "weakref.WeakKeyDictionary[DistributedDataParallel, Buckets]" = weakref.WeakKeyDictionary()


def attach(model: DistributedDataParallel, log: SpanLog) -> None:
    """Record the collectives of ``model`` in ``log``; a warning where it has a hook already."""
    buckets = _known.get(model)
    if buckets is None:
        buckets = Buckets(model)
        try:
            model.register_comm_hook(buckets, reduce_bucket)
        except RuntimeError as error:
            print(
                "byteprophet: warning: collectives are not recorded, as the model has a "
                f"communication hook of its own: {str(error).splitlines()[0]}",
                file=sys.stderr,
            )
            return
        _known[model] = buckets
    buckets.log = log


def detach(model: DistributedDataParallel) -> None:
    """Record them no more."""
    buckets = _known.get(model)
    if buckets is not None:
        buckets.log = None


def reduce_bucket(
    state: Buckets,
    bucket: distributed.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket over all ranks, as without a hook."""
    log, gradients = state.log, bucket.buffer()
    if state.divides:
        gradients.div_(state.size)
    else:
        gradients.mul_(1.0 / state.size)
    index, iteration = bucket.index(), 0 if log is None else log.iteration
    begin_ns = 0 if log is None else log.clock()
    work = distributed.all_reduce(gradients, group=state.group, async_op=True)
    with state.lock:
        state.under_way += 1
        if bucket.is_last():
            state.waits_since_ns, state.waiting = begin_ns, threading.get_ident()

    def reduced(future: torch.futures.Future[Any]) -> torch.Tensor:
        with state.lock:
            state.under_way -= 1
            since_ns = 0 if state.under_way else state.waits_since_ns
            if since_ns:
                state.waits_since_ns = 0
        if log is not None:
            now_ns = log.clock()
            log.add(
                Kind.COLLECTIVE,
                f"bucket {index}",
                begin_ns,
                now_ns,
                iteration=iteration,
                size_bytes=gradients.nbytes,
                lane=log.lane(("bucket", index)),
            )
            if since_ns:
                lane = log.lane(state.waiting)
                log.add(
                    Kind.WAIT, "all gradients", since_ns, now_ns, iteration=iteration, lane=lane
                )
        result: torch.Tensor = future.value()[0]
        return result

    done: torch.futures.Future[torch.Tensor] = work.get_future().then(reduced)
    return done
