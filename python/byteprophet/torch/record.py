"""``record``: spans of a training loop that does without BytePS.

    with bps.record(model, directory="runs/mine"):
        train(model)

For one process and for ``DistributedDataParallel``, given the wrapped model. What is recorded is
described in ``layer_spans.py``; an iteration is from one training forward of ``model`` to the next.
UPDATE is a whole ``step()`` of an optimizer, COLLECTIVE a bucket of DistributedDataParallel
(``ddp_spans.py``). Spans are saved every 0.25 s, at exit and after SIGTERM.

Threads: ``start`` and ``stop`` in the thread that trains, outside of forward and backward.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor, distributed, nn
from torch.nn.modules import module as hooks
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from byteprophet.observe import process as observing
from byteprophet.observe import recording
from byteprophet.observe.observer import NoTransfers, Observer
from byteprophet.observe.span_log import SpanLog
from byteprophet.observe.span_recording import SpanConsumer
from byteprophet.observe.windows import Windows
from byteprophet.timeline.tables import Kind
from byteprophet.torch import ddp_spans, flush_points
from byteprophet.torch.layer_spans import LayerSpans
from byteprophet.torch.stopwatch import is_training_forward


class Record:
    """What ``record`` returns: records from ``start`` to ``stop``, or within ``with``."""

    def __init__(self, model: nn.Module, directory: Path, windows: Windows) -> None:
        self._model = model
        self._directory = directory
        self._windows = windows
        self._log = SpanLog()
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        self._named: list[tuple[str, nn.Parameter]] = list(inner.named_parameters())
        self._layers = LayerSpans(self._log, self._declared)
        self._handles: list[Any] = []
        self._steps_begun_ns: dict[int, int] = {}  # of optimizers, by id
        self._observer: Observer | None = None

    def start(self) -> None:
        """Record from the next forward on, in a file of its own; iterations count from 1.

        ``RuntimeError`` where a ``DistributedOptimizer`` lives: there is ``start_recording``.
        """
        if self._observer is not None:
            return
        if flush_points.live_fronts():
            raise RuntimeError(
                "byteprophet: record() is for training without BytePS; this process has a "
                "DistributedOptimizer: call start_recording()"
            )
        rank = distributed.get_rank() if distributed.is_initialized() else 0
        consumer = SpanConsumer(self._directory, f"worker-{rank}", rank, self._log)
        self._log.start(self._windows, 0)
        self._observer = Observer(NoTransfers(), [consumer])
        observing.observe(self._observer)
        atexit.register(self.stop)
        self._handles = [
            hooks.register_module_forward_pre_hook(self._before_forward),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
            *(self._hook(name, p) for name, p in self._named if p.requires_grad),
        ]
        if isinstance(self._model, DistributedDataParallel):
            ddp_spans.attach(self._model, self._log)
        self._layers.refresh()

    def stop(self) -> None:
        """Complete the file; again: nothing happens. The model is as it was before ``start``."""
        observer, self._observer = self._observer, None
        if observer is None:
            return
        atexit.unregister(self.stop)
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if isinstance(self._model, DistributedDataParallel):
            ddp_spans.detach(self._model)
        self._log.begin_iteration(self._log.iteration + 1)  # ends the last one
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
        return {id(parameter): name for name, parameter in self._named}

    def _hook(self, name: str, parameter: nn.Parameter) -> Any:
        def accumulated(of: Tensor) -> None:
            if self._layers.installed:
                self._layers.gradient_ready(name, of.nbytes)

        return parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]

    def _before_forward(self, module: nn.Module, _inputs: Any) -> None:
        if module is self._model and is_training_forward():
            self._layers.begin_iteration(self._log.iteration + 1, module)
            self._layers.refresh()

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._steps_begun_ns[id(optimizer)] = self._log.clock()

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        begun_ns = self._steps_begun_ns.pop(id(optimizer), None)
        if begun_ns is not None:
            self._log.add(Kind.UPDATE, "optimizer", begun_ns, self._log.clock())


def record(
    model: nn.Module,
    directory: str | Path | None = None,
    steps: tuple[int, int] | None = None,
) -> Record:
    """Record the training of ``model``: ``<directory>/events/spans-worker-<rank>.arrows``.

    ``directory``: default: the run directory that ``byteprophet run`` gave. ``steps``: the first
    iteration, from 1, and the one to stop before; default: those of ``--record-steps``, else all.
    ``ValueError`` where there is no directory; ``UserError`` for steps that are no window.
    """
    place = directory or os.environ.get("BYTEPROPHET_RUN")
    if not place:
        raise ValueError("record(model): give a directory to save to, e.g. directory='runs/mine'")
    if steps is None:
        windows = Windows.parse(os.environ.get(recording.STEPS, ""), recording.STEPS)
    else:
        windows = Windows.parse(f"{steps[0]}:{steps[1]}", "steps")
    return Record(model, Path(place), windows)
