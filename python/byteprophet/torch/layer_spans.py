"""Spans of iterations, layers and gradients, seen through hooks that are there only meanwhile.

Layer
    A module that owns parameters and is called. Its name is that of its parameters without their
    last part, so that ``layer1.weight`` belongs to ``layer1``; where that is no name of its own
    (tied weights), the module's qualified name.
ITERATION
    From the begin of the first training forward after the first gradient of the iteration before
    (or, with ``record()``, of a forward of the root module) to the next such. So transfers and
    spans of one number belong together: the forward, its backward, and the updates that follow. An
    iteration that no other follows has no such span.
FORWARD
    Of a layer, from when its parameters are there to its return: the front's hooks, which wait for
    them, run before ours. Layers called by a layer are nested in it; so is a wait in its midst.
BACKWARD
    Named by parameter: from the gradient complete before to this one complete, in autograd's
    thread; with the gradient's bytes. The first begins where backward reaches the model's output.

Left out: evaluation (no gradients), forwards in other threads than the first, and what runs again
inside backward (checkpointing), which is part of BACKWARD. Times are the host's: on an accelerator,
where kernels run later, they tell when work was handed out, not when it was done.

Threads: hooks run in the thread that trains; ``first_gradient``, ``gradient_ready`` and
``_backward_begins`` also in autograd's, while that one waits.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils import _pytree
from torch.utils.hooks import RemovableHandle

from byteprophet.observe.span_log import SpanLog, process_spans
from byteprophet.timeline.tables import Kind
from byteprophet.torch import flush_points
from byteprophet.torch.stopwatch import in_backward, is_training_forward


class LayerSpans:
    """Adds to ``log``. ``declared``: names of parameters, by ``id``, as they are now."""

    def __init__(self, log: SpanLog, declared: Callable[[], Mapping[int, str]]) -> None:
        self._log = log
        self._declared = declared
        self._handles: list[RemovableHandle] = []
        self._next: int | None = None  # begins with the next forward
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._open: list[tuple[nn.Module, int]] = []  # layers whose forward runs, and since when
        self._root: nn.Module | None = None  # its forward is the iteration's first
        self._in_root = False
        self._thread = 0
        self._ended_ns = 0  # the last layer's forward
        self._ready_ns: dict[int, int] = {}  # by thread of autograd
        self._passes: dict[int, int] = {}  # the backward pass that it was in last

    @property
    def installed(self) -> bool:
        """Whether hooks are there."""
        return bool(self._handles)

    def restart(self, iteration: int) -> None:
        """``iteration`` is the last one that has begun; the next begins with the next forward."""
        self._next = iteration + 1
        self.refresh()

    def refresh(self) -> None:
        """Have hooks if the log expects spans; called where no forward runs."""
        wanted = self._log.expects() and not self._log.told_by_model
        if wanted and not self._handles:
            self._names.clear()
            self.hook_last()
        elif not wanted and self._handles:
            self._remove()
            self._root = None

    def hook_last(self) -> None:
        """Put our hooks behind all others, so that a layer begins when they have waited."""
        self._remove()
        self._handles = [
            hooks.register_module_forward_pre_hook(self._before),
            hooks.register_module_forward_hook(self._after),
        ]

    def first_gradient(self, iteration: int) -> None:
        """The first gradient of ``iteration`` is complete: the next forward is the next one's."""
        log = self._log
        if log.iteration != iteration:
            log.skip_to(iteration)
        self._next = iteration + 1
        if self._handles or log.on or log.expects():
            self.refresh()

    def before_wait(self, module: nn.Module) -> None:
        """``module`` is about to run, or to wait until it may."""
        if self._handles and self._next is not None and is_training_forward():
            self.begin_iteration(self._next, module)

    def begin_iteration(self, iteration: int, root: nn.Module) -> None:
        """``iteration`` begins with the forward of ``root``."""
        self._next = None
        self._root, self._in_root = root, True
        self._thread = threading.get_ident()
        self._open.clear()
        self._log.begin_iteration(iteration)
        if root not in self._names:
            self._learn_names(root)

    def gradient_ready(self, name: str, size_bytes: int) -> None:
        """The gradient of parameter ``name``, of so many bytes, is complete."""
        now_ns, thread = self._log.clock(), threading.get_ident()
        begin_ns = max(self._ready_ns.get(thread, 0), self._ended_ns) or now_ns
        self._ready_ns[thread] = now_ns
        self._passes[thread] = torch._C._current_graph_task_id()
        begin_ns = min(begin_ns, now_ns)
        self._log.add(Kind.BACKWARD, name, begin_ns, now_ns, size_bytes=size_bytes)

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before(self, module: nn.Module, _inputs: Any) -> None:
        if self._next is not None:
            if not is_training_forward():
                return
            self.begin_iteration(self._next, module)
        elif module is self._root:
            self._in_root = is_training_forward()
        if module._parameters and self._counts():
            self._open.append((module, self._log.clock()))

    def _after(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        layers = self._open
        if (not layers and module is not self._root) or threading.get_ident() != self._thread:
            return
        now_ns = self._log.clock()
        if layers and layers[-1][0] is not module and any(module is layer for layer, _ in layers):
            while layers[-1][0] is not module:  # these have raised
                layers.pop()
        if layers and layers[-1][0] is module:
            begin_ns = layers.pop()[1]
            name = self._name(module)
            if name:
                self._ended_ns = now_ns
                self._log.add(Kind.FORWARD, name, begin_ns, now_ns)
        if module is self._root and self._in_root:
            self._in_root = False
            self._ended_ns = now_ns
            for tensor in _pytree.tree_leaves(output):
                if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                    tensor.grad_fn.register_prehook(self._backward_begins)

    def _counts(self) -> bool:
        """Whether what runs here is forward: within the model also where gradients are off."""
        if threading.get_ident() != self._thread:
            return False
        return is_training_forward() or (self._in_root and not in_backward())

    def _backward_begins(self, _gradients: Any) -> None:
        """Backward has reached an output of the model; the first one counts."""
        thread, number = threading.get_ident(), torch._C._current_graph_task_id()
        if self._passes.get(thread) != number:
            self._passes[thread] = number
            self._ready_ns[thread] = self._log.clock()

    def _name(self, module: nn.Module) -> str:
        """Of a layer; "" for a module that owns no parameter."""
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
    return {
        key: slot.name
        for front in flush_points.live_fronts()
        for key, slot in front.gradients.slots.items()
    }


process_layers = LayerSpans(process_spans, _declared_parameters)
