"""Spans of the collectives of ``torch.nn.parallel.DistributedDataParallel``, one per bucket.

A communication hook does what DistributedDataParallel does without one: the same operations on the
same memory. It also notes when a bucket was complete, how long the training thread took to hand it
over, and when its all-reduce ended (with NCCL: when it was queued). The wait from the last bucket
of an iteration to the end of the last all-reduce is a span, too. Once buckets were rebuilt, or if
they never are, rank 0 saves which gradients each one has, in strategy.json.

A model can have only one hook, which cannot be removed. So ours stays, and only reduces while
nobody records. If a strategy casts gradients, the same hook does it (``reduce_in``), with the
operations of torch's ``bf16_compress_hook`` and ``fp16_compress_hook``. With
``gradient_as_bucket_view``, the first iteration may differ in the last bit if the number of ranks
is not a power of two. The reason is that DistributedDataParallel multiplies by the reciprocal in
its first iteration, and divides in all others.

Threads: the hook runs in autograd's threads. All-reduces end in threads of the process group.

This file cannot use ``from __future__ import annotations``, because DistributedDataParallel checks
a hook's annotations.
"""

import os
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from byteprophet.job import Bucket, Strategy
from byteprophet.job.strategy import DDP
from byteprophet.observe.span_log import SpanLog
from byteprophet.observe.strategy_recording import RUN, record_strategy
from byteprophet.timeline.tables import Kind
from byteprophet.torch.recording.ddp_buckets import (
    reduced_parameters,
    why_fixed,
    why_not_cast,
)
from byteprophet.torch.tensors.reduce_dtypes import REDUCE_DTYPES

HAND_OVER = "hand over bucket "
"""The begin of the names of spans in which the training thread hands a bucket to its collective."""


class Buckets:
    """The state of one model's hook. ``log`` is None while nobody records."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self.names: Mapping[int, str] = {}
        self.environment: Mapping[str, str] | None = None  # with the directory to save buckets in
        self.log: SpanLog | None = None
        self.model = weakref.ref(model)
        # Until they are saved: the parameters of each bucket. Rank 0 saves for all.
        self.unsaved: list[list[torch.Tensor]] | None = None
        self.group: Any = model.process_group
        self.size = distributed.get_world_size(self.group)
        self.divides = bool(model.gradient_as_bucket_view)
        self.reduce_dtype = ""  # the type in which gradients travel; "": their own
        self.in_flight = 0  # collectives; the lock guards this and the next two
        self.waits_since_ns = 0  # 0 until the last bucket of the iteration is complete
        self.waiting: Any = None  # the thread that submitted the last bucket
        self.lock = threading.Lock()


_known: "weakref.WeakKeyDictionary[DistributedDataParallel, Buckets]" = weakref.WeakKeyDictionary()


def reduce_in(model: DistributedDataParallel, reduce_dtype: str) -> None:
    """Let gradients of ``model``, all of float32, travel in another type. Nobody records yet.

    Raises ``RuntimeError`` if the model has another hook already.
    """
    buckets = Buckets(model)
    buckets.reduce_dtype = reduce_dtype
    model.register_comm_hook(buckets, reduce_bucket)
    _known[model] = buckets


def attach(
    model: DistributedDataParallel,
    log: SpanLog,
    names: Mapping[int, str],
    run_directory: Path | None = None,
) -> None:
    """Record the collectives of ``model`` in ``log``. Only warns if it has another hook already.

    ``names``: those of gradients in other spans, by id of the parameter. ``run_directory``: where
    buckets are saved; None: in the job's run directory.
    """
    buckets = _known.get(model)
    environment = os.environ if run_directory is None else {RUN: str(run_directory)}
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
    if buckets.environment != environment:  # this directory does not have them yet
        buckets.names, buckets.environment = names, environment
        buckets.unsaved = [] if distributed.get_rank() == 0 else None
    buckets.log = log


def detach(model: DistributedDataParallel) -> None:
    """Stop recording the collectives of ``model``."""
    buckets = _known.get(model)
    if buckets is not None:
        buckets.log = None


def reduce_bucket(
    state: Buckets,
    bucket: distributed.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket over all ranks, as DistributedDataParallel does without a hook."""
    log, gradients = state.log, bucket.buffer()
    sent = gradients
    if state.reduce_dtype:
        sent = gradients.to(REDUCE_DTYPES[state.reduce_dtype]).div_(state.size)
    elif state.divides:
        gradients.div_(state.size)
    else:
        gradients.mul_(1.0 / state.size)
    index, iteration = bucket.index(), 0 if log is None else log.iteration
    if log is not None and state.unsaved is not None:
        state.unsaved.append(bucket.parameters())
        if bucket.is_last():
            _save_lasting(state, iteration)
    begin_ns = 0 if log is None else log.clock()
    work = distributed.all_reduce(sent, group=state.group, async_op=True)
    with state.lock:
        state.in_flight += 1
        if bucket.is_last():
            state.waits_since_ns, state.waiting = begin_ns, threading.get_ident()

    def reduced(future: torch.futures.Future[Any]) -> torch.Tensor:
        with state.lock:
            state.in_flight -= 1
            since_ns = 0 if state.in_flight else state.waits_since_ns
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
                size_bytes=sent.nbytes,
                lane=log.lane(("bucket", index)),
            )
            if since_ns:
                lane = log.lane(state.waiting)
                log.add(
                    Kind.WAIT, "all gradients", since_ns, now_ns, iteration=iteration, lane=lane
                )
        result: torch.Tensor = future.value()[0]
        return result if sent is gradients else gradients.copy_(result)

    done: torch.futures.Future[torch.Tensor] = work.get_future().then(reduced)
    if log is not None:
        name = f"{HAND_OVER}{index}"
        log.add(Kind.COMPUTE, name, begin_ns, log.clock(), iteration=iteration)
    return done


def _save_lasting(state: Buckets, iteration: int) -> None:
    """Save the buckets of this iteration if they stay.

    They do if they were rebuilt, or never will be. The logging data has them, too, but asking for
    it here would wait for a lock that is held.
    """
    model, reduced = state.model(), state.unsaved
    assert model is not None
    assert reduced is not None
    assert state.environment is not None
    state.unsaved = []
    never_rebuilds = model.find_unused_parameters and not model.static_graph
    if not (model._has_rebuilt_buckets or never_rebuilds):
        return
    state.unsaved = None
    names = state.names
    buckets = (
        Bucket(tuple(names[id(parameter)] for parameter in each), place, place)
        for place, each in enumerate(reduced)
    )
    strategy = Strategy(
        DDP,
        tuple(buckets),
        model.bucket_bytes_cap,
        fixed=why_fixed(model.module, model.static_graph, model.find_unused_parameters),
        reduce_dtype=state.reduce_dtype,
        reduce_fixed=why_not_cast(model.module),
    )
    sizes = {names[id(each)]: each.nbytes for each in reduced_parameters(model.module).values()}
    record_strategy(strategy, sizes, iteration, environment=state.environment)
