"""``record``: records spans of a training loop without BytePS.

    with bps.record(model, directory="runs/mine"):
        train(model)

Works for one process and for ``DistributedDataParallel`` (pass the wrapped model).
``recording/layer_spans.py`` describes the spans. An iteration lasts from one training forward of
``model`` to the next; what DistributedDataParallel accumulates in ``no_sync()`` belongs to the
iteration whose backward pass reduces it. An UPDATE span is a whole ``step()`` of an optimizer. A
COLLECTIVE span is a bucket of DistributedDataParallel (``recording/ddp_spans.py``). Spans are saved
every 0.25 s, at exit and after SIGTERM. In a job of ``byteprophet run --record`` without servers, a
model is recorded as soon as a script wraps it in DistributedDataParallel, or FSDP2 shards it
(``fully_sharded.py``).

Threads: call ``start`` and ``stop`` in the training thread, outside of forward and backward.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from byteprophet.observe import live, recording
from byteprophet.observe.observer import Consumer, Job, NoTransfers, Observer
from byteprophet.observe.pace import process_pace
from byteprophet.observe.span_log import SpanLog
from byteprophet.observe.span_recording import SpanConsumer
from byteprophet.observe.windows import Windows
from byteprophet.session import process as observing
from byteprophet.timeline.tables import Kind
from byteprophet.torch.ddp import models
from byteprophet.torch.front import flush_points
from byteprophet.torch.live_fronts import live_fronts
from byteprophet.torch.recording import all_averages, ddp_spans
from byteprophet.torch.recording.ddp_buckets import called, named_parameters
from byteprophet.torch.recording.layer_spans import LayerSpans
from byteprophet.torch.recording.stopwatch import is_training_forward
from byteprophet.torch.tensors import module_calls

if TYPE_CHECKING:  # this import needs FSDP2, and most jobs do not
    from byteprophet.torch.fsdp2.model import ShardedModel

_unasked: Record | None = None


class Record:
    """Records a model's training from ``start`` to ``stop``, or within a ``with`` block."""

    def __init__(
        self,
        model: nn.Module,
        directory: Path,
        windows: Windows,
        sharded: ShardedModel | None = None,
    ) -> None:
        self._model = model
        self._sharded = sharded
        self._directory = directory
        self._windows = windows
        self._log = SpanLog()
        self._named: list[tuple[str, nn.Parameter]] = (
            named_parameters(model, model.module)
            if isinstance(model, DistributedDataParallel)
            else list(model.named_parameters())
        )
        self._layers = LayerSpans(self._log, self._declared)
        self._handles: list[Any] = []
        self._end_listening: Callable[[], None] = lambda: None
        self._steps_begun_ns: dict[int, int] = {}  # of current steps, by id of the optimizer
        self._observer: Observer | None = None
        self._held = False  # the last forward pass was in DistributedDataParallel's no_sync()
        self._attached = False  # to the buckets of DistributedDataParallel

    def start(self) -> None:
        """Record from the next forward on. Iterations count from 1.

        Each start writes a new file. Raises ``RuntimeError`` if this process has a
        ``DistributedOptimizer``, or our synchronisers are to exchange the gradients of the model;
        use ``start_recording`` then.
        """
        if self._observer is not None:
            return
        if _unasked is not self:
            stop_unasked()
        known = None
        if isinstance(self._model, DistributedDataParallel):
            known = models.known(self._model)
        if live_fronts() or (known is not None and known.state is not models.State.PLAIN):
            raise RuntimeError(
                "byteprophet: record() is for training without BytePS; this process has a "
                "DistributedOptimizer, or BYTEPROPHET_SYNC: call start_recording()"
            )
        rank = distributed.get_rank() if distributed.is_initialized() else 0
        consumers: list[Consumer] = [
            SpanConsumer(self._directory, f"worker-{rank}", rank, self._log)
        ]
        size = distributed.get_world_size() if distributed.is_initialized() else 1
        job = Job(rank, size, {}, self._directory)
        if watched := live.make_consumer(os.environ, job, has_transfers=False):
            consumers.append(watched)
        all_averages.record_in(self._log)
        flush_points.install()
        self._log.start(self._windows, 0)
        self._observer = Observer(NoTransfers(), consumers)
        observing.observe(self._observer)
        atexit.register(self._stop_at_exit)
        self._end_listening = module_calls.listen(self._before_forward)
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        if self._sharded is not None:
            self._sharded.record(self._log, self._gradient_ready)
        else:
            hooks = (self._hook(name, p) for name, p in self._named if p.requires_grad)
            self._handles.extend(hooks)
        self._held = self._attached = False
        self._layers.refresh()

    def stop(self) -> None:
        """Stop recording, complete the file and remove the hooks. A second call does nothing."""
        if self._observer is not None:
            self._log.begin_iteration(self._log.iteration + 1)  # ends the last one
            self._end(self._observer)

    def _stop_at_exit(self) -> None:
        """Stop recording, without a span of the last iteration: nobody knows when it ended."""
        if self._observer is not None:
            self._end(self._observer)

    def _end(self, observer: Observer) -> None:
        self._observer = None
        atexit.unregister(self._stop_at_exit)
        self._end_listening()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if isinstance(self._model, DistributedDataParallel):
            ddp_spans.detach(self._model)
        if self._sharded is not None:
            self._sharded.record(None, self._gradient_ready)
        observing.end(observer)
        self._layers.refresh()

    def __enter__(self) -> Record:
        self.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _declared(self) -> Mapping[int, str]:
        if self._sharded is not None:
            return self._sharded.names
        return {id(parameter): name for name, parameter in self._named}

    def _gradient_ready(self, name: str, size_bytes: int) -> None:
        if self._layers.installed:
            self._layers.gradient_ready(name, size_bytes)

    def _hook(self, name: str, parameter: nn.Parameter) -> Any:
        def accumulated(of: Tensor) -> None:
            self._gradient_ready(name, of.nbytes)

        return parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]

    def _before_forward(self, module: nn.Module, _inputs: Any) -> None:
        if module is not called(self._model) or not is_training_forward():
            return
        if not self._held:
            process_pace.begin(self._log.iteration + 1)
            self._layers.begin_iteration(self._log.iteration + 1, module)
            self._layers.refresh()
        if isinstance(self._model, DistributedDataParallel):
            if not self._attached:  # not before: until now, the script may add a hook of its own
                ddp_spans.attach(self._model, self._log, self._declared(), self._directory)
                self._attached = True
            self._held = not self._model.require_backward_grad_sync

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._steps_begun_ns[id(optimizer)] = self._log.clock()

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        begun_ns = self._steps_begun_ns.pop(id(optimizer), None)
        if begun_ns is not None:
            self._log.add(Kind.UPDATE, "optimizer", begun_ns, self._log.clock())


def record_unasked(model: nn.Module, sharded: ShardedModel | None = None) -> None:
    """Record ``model`` if the job is to be recorded and its script does not do so itself.

    It is a DistributedDataParallel, or the model of ``sharded``.

    Only the first model of a process is recorded. A script that calls ``record`` later has the last
    word.
    """
    global _unasked
    wanted = recording.check(os.environ) and os.environ.get("BYTEPROPHET_RUN")
    of_byteps = os.environ.get("DMLC_ROLE")
    if not wanted or of_byteps or _unasked is not None or observing.joined() or live_fronts():
        return
    windows = Windows.parse(os.environ.get(recording.STEPS, ""), recording.STEPS)
    _unasked = Record(model, Path(wanted), windows, sharded)
    _unasked.start()


def stop_unasked() -> None:
    """End what ``record_unasked`` has begun, because something else records this process."""
    global _unasked
    if _unasked is not None:
        _unasked.stop()
        _unasked = None


def record(
    model: nn.Module,
    directory: str | Path | None = None,
    steps: tuple[int, int] | None = None,
) -> Record:
    """Record the training of ``model`` in ``<directory>/events/spans-worker-<rank>.arrows``.

    Args:
        model: the model, or the ``DistributedDataParallel`` that wraps it.
        directory: by default, the run directory that ``byteprophet run`` has set.
        steps: the first iteration to record, from 1, and the first one after it not to record. By
            default, those of ``--record-steps``, or all.

    Raises:
        ValueError: there is no directory.
        UserError: ``steps`` is not a valid range.
    """
    place = directory or os.environ.get("BYTEPROPHET_RUN")
    if not place:
        raise ValueError("record(model): give a directory to save to, e.g. directory='runs/mine'")
    if steps is None:
        windows = Windows.parse(os.environ.get(recording.STEPS, ""), recording.STEPS)
    else:
        windows = Windows.parse(f"{steps[0]}:{steps[1]}", "steps")
    return Record(model, Path(place), windows)
