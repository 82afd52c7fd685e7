"""Spans of iterations, layers and gradients, from hooks that exist only during recording.

Layer
    A module that owns parameters and is called. Its name is that of its parameters without their
    last part, so ``layer1.weight`` belongs to ``layer1``. If another module has that name already
    (tied weights), it is the module's qualified name.
ITERATION
    Begins with the first training forward after the first gradient of the previous iteration, or,
    with ``record()``, with a training forward of the root module. It ends when the next iteration
    begins. So transfers and spans of one number belong together: the forward, its backward, and
    the updates that follow. The last iteration has no such span.
FORWARD
    A layer's forward, from when its parameters are up to date to its return. The front's hooks,
    which wait for the parameters, run before ours. Layers called by a layer are nested in its span,
    and so is a wait during it.
BACKWARD
    The time in which a parameter's gradient was computed, in autograd's thread. It lasts from the
    completion of the previous gradient to that of this one, and carries the gradient's size in
    bytes. The first one begins when backward reaches the model's output.

These are not recorded: evaluation (without gradients), forwards in threads other than the first,
and code that runs again inside backward (checkpointing), which is part of BACKWARD. Times are the
host's. On an accelerator, they show when kernels were launched, not when they finished.

Threads: hooks run in the training thread. ``first_gradient``, ``gradient_ready`` and
``_backward_begins`` also run in autograd's threads, while the training thread waits.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from byteprophet.observe.span_log import SpanLog, process_spans
from byteprophet.timeline.tables import Kind
from byteprophet.torch.live_fronts import live_fronts
from byteprophet.torch.recording.stopwatch import is_training_forward
from byteprophet.torch.tensors import module_calls
from byteprophet.torch.tensors.backward import in_backward
from byteprophet.torch.tensors.nested import tensors_in


def _nothing() -> None:
    """Stands for a weak reference to no module."""


class LayerSpans:
    """Adds spans to ``log``. ``declared`` returns the current names of parameters, by ``id``."""

    def __init__(self, log: SpanLog, declared: Callable[[], Mapping[int, str]]) -> None:
        self._log = log
        self._declared = declared
        self._end_listening: Callable[[], None] | None = None
        self._next: int | None = None  # the iteration that the next forward begins
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._open: list[tuple[nn.Module, int]] = []  # running layers, with the begin of each
        # The module whose forward began the iteration, as a weak reference.
        self._root: Callable[[], nn.Module | None] = _nothing
        self._in_root = False
        self._thread = 0
        self._ended_ns = 0  # end of the last forward
        self._ready_ns: dict[int, int] = {}  # time of the latest gradient, by autograd's thread
        self._passes: dict[int, int] = {}  # id of the latest backward pass, by thread

    @property
    def installed(self) -> bool:
        """Whether this listens to calls of modules."""
        return self._end_listening is not None

    def restart(self, iteration: int) -> None:
        """Continue after ``iteration``: the next forward begins the next iteration."""
        self._next = iteration + 1
        self.refresh()

    def refresh(self) -> None:
        """Begin or end listening to modules, depending on the log. No forward may be running."""
        wanted = self._log.expects() and not self._log.told_by_model
        if wanted and self._end_listening is None:
            self._names.clear()
            # Ours comes last, so that a layer's span begins after the waits of other listeners.
            self._end_listening = module_calls.listen(self._before, self._after, last=True)
        elif not wanted and self._end_listening is not None:
            self._end_listening()
            self._end_listening = None
            self._root = _nothing

    def first_gradient(self, iteration: int) -> None:
        """Note the first gradient of ``iteration``: the next forward begins the next iteration."""
        log = self._log
        if log.iteration != iteration:
            log.skip_to(iteration)
        self._next = iteration + 1
        if self.installed or log.on or log.expects():
            self.refresh()

    def before_wait(self, module: nn.Module) -> None:
        """Note that ``module`` is about to run, or to wait for its parameters."""
        if self.installed and self._next is not None and is_training_forward():
            self.begin_iteration(self._next, module)

    def begin_iteration(self, iteration: int, root: nn.Module) -> None:
        """Begin ``iteration`` with the forward of ``root``."""
        self._next = None
        self._root, self._in_root = weakref.ref(root), True
        self._thread = threading.get_ident()
        self._open.clear()
        self._log.begin_iteration(iteration)
        if root not in self._names:
            self._learn_names(root)

    def gradient_ready(self, name: str, size_bytes: int) -> None:
        """Note that the gradient of parameter ``name``, of ``size_bytes`` bytes, is complete."""
        now_ns, thread = self._log.clock(), threading.get_ident()
        begin_ns = max(self._ready_ns.get(thread, 0), self._ended_ns) or now_ns
        self._ready_ns[thread] = now_ns
        self._passes[thread] = torch._C._current_graph_task_id()
        begin_ns = min(begin_ns, now_ns)
        self._log.add(Kind.BACKWARD, name, begin_ns, now_ns, size_bytes=size_bytes)

    def _before(self, module: nn.Module, _inputs: Any) -> None:
        if self._next is not None:
            if not is_training_forward():
                return
            self.begin_iteration(self._next, module)
        elif module is self._root():
            self._in_root = is_training_forward()
        if module._parameters and self._counts():
            self._open.append((module, self._log.clock()))

    def _after(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        layers = self._open
        if (not layers and module is not self._root()) or threading.get_ident() != self._thread:
            return
        now_ns = self._log.clock()
        if layers and layers[-1][0] is not module and any(module is layer for layer, _ in layers):
            while layers[-1][0] is not module:  # forwards that raised an exception
                layers.pop()
        if layers and layers[-1][0] is module:
            begin_ns = layers.pop()[1]
            name = self._name(module)
            if name:
                self._ended_ns = now_ns
                self._log.add(Kind.FORWARD, name, begin_ns, now_ns)
        if module is self._root() and self._in_root:
            self._in_root = False
            self._ended_ns = now_ns
            for tensor in tensors_in(output):
                if tensor.grad_fn is not None:
                    tensor.grad_fn.register_prehook(self._backward_begins)

    def _counts(self) -> bool:
        """Whether this is part of a training forward, or within one with gradients disabled."""
        if threading.get_ident() != self._thread:
            return False
        return is_training_forward() or (self._in_root and not in_backward())

    def _backward_begins(self, _gradients: Any) -> None:
        """Note that backward has reached an output of the model, if it is the first of the pass."""
        thread, number = threading.get_ident(), torch._C._current_graph_task_id()
        if self._passes.get(thread) != number:
            self._passes[thread] = number
            self._ready_ns[thread] = self._log.clock()

    def _name(self, module: nn.Module) -> str:
        """The name of a layer; "" for a module that owns no parameter."""
        name = self._names.get(module)
        if name is None:
            self._learn_names(module)
            name = self._names[module]
        return name

    def _learn_names(self, root: nn.Module) -> None:
        declared = self._declared()
        taken = set(self._names.values())
        for qualified, module in root.named_modules():
            if module in self._names:
                continue
            own = [(local, p) for local, p in module._parameters.items() if p is not None]
            known = [(local, declared.get(id(p), "")) for local, p in own]
            stems = [
                name.removesuffix(f".{local}") for local, name in known if name not in ("", local)
            ]
            name = next(iter(stems), qualified) if own else ""
            if name in taken:
                name = qualified
            if own and not name:
                name = type(module).__name__
            self._names[module] = name
            taken.add(name)


def _declared_parameters() -> dict[int, str]:
    return {key: name for front in live_fronts() for key, name in front.parameter_names().items()}


process_layers = LayerSpans(process_spans, _declared_parameters)
