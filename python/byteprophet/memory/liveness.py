"""Follows the storages of an iteration, with data or without, from operation to operation.

A storage lives from the operation that makes it until Python and autograd have let go of it, which
a weak reference tells. This is the memory that tensors take. What a kernel takes while it runs is
not seen here (``kernels.py``).

Threads: autograd runs the backward pass of CPU tensors in the calling thread, so there is one.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

from byteprophet.memory.kernels import Kernel, kernel_of
from byteprophet.memory.without_data import require_strided


class Use(IntEnum):
    """What a storage is used for."""

    PARAMETERS = 0
    BUFFERS = 1
    INPUTS = 2
    GRADIENTS = 3
    OPTIMIZER_STATE = 4
    ACTIVATIONS = 5
    """Everything else: activations, their gradients, and temporary results."""
    OBJECTS = 6
    """Objects of Python and autograd around tensors: ``OBJECT_BYTES`` per storage."""


OBJECT_BYTES = 1000
"""What the objects around one storage take on average (measured: 700 to 1500 bytes per model)."""


@dataclass(frozen=True)
class Size:
    """A parameter, and the bytes of its optimizer state that has the same shape."""

    elements: int
    size_bytes: int
    dtype: torch.dtype
    state_bytes: int


@dataclass
class Timeline:
    """Bytes that live before and after each operation of an iteration, in order.

    ``parameters``: by name.
    ``before``, ``after``: one row per operation, one column per ``Use``. ``kernels``: the kernel of
    each operation, None if it needs no memory of its own. ``first_uses``: each parameter with the
    number of operations before the first one that reads it. ``gradients``: a parameter for each
    time that its gradient was accumulated, with the number of operations before.
    ``marks``: labels of places between operations, each with the number of operations before it.
    """

    before: list[tuple[int, ...]] = field(default_factory=list)
    after: list[tuple[int, ...]] = field(default_factory=list)
    kernels: list[Kernel | None] = field(default_factory=list)
    parameters: dict[str, Size] = field(default_factory=dict)
    first_uses: dict[str, int] = field(default_factory=dict)
    gradients: list[tuple[int, str]] = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)

    def peaks(self, extra: Mapping[Kernel, int]) -> list[int]:
        """The highest total while each operation ran.

        ``extra``: bytes that each kernel takes at most while it runs, results among them.
        """
        peaks = []
        for before, after, kernel in zip(self.before, self.after, self.kernels, strict=True):
            inside = 0 if kernel is None else extra.get(kernel, 0)
            peaks.append(max(sum(after), sum(before) + inside))
        return peaks


def is_ordinary(tensor: Tensor) -> bool:
    """Whether the memory of ``tensor`` is an ordinary one, of this process."""
    return tensor.layout is torch.strided and tensor.device.type == "cpu"


def tensors_of_python() -> list[Tensor]:
    """All plain ones. Those of other classes may have no memory, as in torch's own tracing."""
    return [each for each in gc.get_objects() if type(each) is Tensor]


class Liveness(TorchDispatchMode):
    """Within this context, records a timeline of the operations on tensors.

    Without data, enter it inside a ``FakeTensorMode``. Hold what is tracked before (``track``)
    alive.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.timeline = Timeline()
        self._live = [0] * len(Use)
        self._use: dict[weakref.ref[UntypedStorage], tuple[Use, int]] = {}
        self._followed: dict[weakref.ref[UntypedStorage], str] = {}
        self._unread: dict[weakref.ref[UntypedStorage], str] = {}

    def track(self, tensors: Iterable[Tensor], use: Use) -> None:
        """Count the storages of ``tensors`` under ``use`` from now on."""
        for tensor in tensors:
            self._track(tensor, use, again=True)

    def follow(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Note when these parameters are first read, and count their gradients as such.

        This begins with the next ``restart``.
        """

        def accumulated(name: str, parameter: Tensor) -> None:
            if parameter.grad is not None:
                self._track(parameter.grad, Use.GRADIENTS, again=True)
                self.timeline.gradients.append((len(self.timeline.after), name))

        for name, parameter in named:
            self._followed[weakref.ref(self._memory_of(parameter).untyped_storage())] = name
            if parameter.requires_grad:
                hook = functools.partial(accumulated, name)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def mark(self, label: str) -> None:
        """Add a mark to the timeline."""
        self.timeline.marks.append((len(self.timeline.after), label))

    def resized(self, storage: UntypedStorage) -> None:
        """Count a storage, if it is followed, with the size that it has now."""
        reference = weakref.ref(storage)
        known = self._use.get(reference)
        if known is not None:
            use, was_bytes = known
            self._use[reference] = use, storage.nbytes()
            self._live[use] += storage.nbytes() - was_bytes

    def restart(self) -> None:
        """Forget the operations so far. What lives goes on being counted."""
        self.timeline = Timeline()
        self._unread = dict(self._followed)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        leaves, tree = tree_flatten((args, kwargs))
        if self._unread:
            self._note_reads(leaves)
        before = tuple(self._live)
        result = func(*args, **kwargs)
        made = 0
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                made += self._track(leaf, Use.ACTIVATIONS, again=False)
        self.timeline.before.append(before)
        self.timeline.after.append(tuple(self._live))
        self.timeline.kernels.append(kernel_of(func, leaves, tree, made))
        return result

    def _note_reads(self, leaves: Iterable[Any]) -> None:
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                name = self._unread.pop(weakref.ref(leaf.untyped_storage()), None)
                if name is not None:
                    self.timeline.first_uses[name] = len(self.timeline.after)

    def _track(self, tensor: Tensor, use: Use, again: bool) -> int:
        """The bytes of the tensor's storage if it was not known before, else 0."""
        tensor = self._memory_of(tensor)
        require_strided(tensor)
        storage = tensor.untyped_storage()
        reference = weakref.ref(storage, self._ended)
        known = self._use.get(reference)
        if known is None:
            size_bytes = storage.nbytes()
            self._use[reference] = use, size_bytes
            self._live[use] += size_bytes
            self._live[Use.OBJECTS] += OBJECT_BYTES
            return size_bytes
        if again and known[0] != use:
            self._live[known[0]] -= known[1]
            self._live[use] += known[1]
            self._use[reference] = use, known[1]
        return 0

    def _memory_of(self, tensor: Tensor) -> Tensor:
        """The tensor that has the memory of ``tensor``, which may be a wrapper of it."""
        return tensor

    def _ended(self, reference: weakref.ref[UntypedStorage]) -> None:
        known = self._use.pop(reference, None)
        if known is not None:
            self._live[known[0]] -= known[1]
            self._live[Use.OBJECTS] -= OBJECT_BYTES
