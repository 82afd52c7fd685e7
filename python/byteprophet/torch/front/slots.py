"""Plain records: the front's state of a parameter, and a submitted gradient.

Who writes what: the training thread writes a slot's fields. This is the main thread, or the
autograd thread that runs the parameter's hook, but never both at once for one parameter. There is
one exception: the updater thread clears ``transfer`` before it sets ``updated``, which ``step()``
made. A transfer's ``frozen_step``, ``arrived`` and ``error`` are written under the updater's
lock, and ``error`` is written before ``arrived`` is set.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from byteprophet.torch.front.flag import Flag
from byteprophet.torch.front.view_step import FrozenStep
from byteprophet.torch.tensors.own_streams import Events
from byteprophet.torch.tensors.sparse import no_rows, stored_bytes


@dataclass(eq=False)
class Transfer:
    """One gradient that was submitted.

    Attributes:
        gradient: the tensor that the optimizer will see.
        wire: the tensor that is sent. It has the same memory as ``gradient`` (``in_place``), or it
            is a compressed or contiguous copy. If it is sparse, it is never in place: it gets other
            rows, and with them other memory.
        context: what the compressor needs to decompress ``wire``.
        iteration: the iteration of the gradient's backward pass, as recorded spans count it.
        shard: the elements, in memory order, of which this rank has the average and which it
            updates. None means all elements.
        compressed: GPU events after which the copy in ``wire`` is complete; None: no copy.
    """

    slot: Slot
    gradient: Tensor
    wire: Tensor
    context: Any
    in_place: bool
    frozen_step: FrozenStep | None = None
    group: int = 0
    iteration: int = 0
    shard: slice | None = None
    compressed: Events | None = None
    arrived: Flag = field(default_factory=Flag)
    error: BaseException | None = None

    @property
    def size_bytes(self) -> int:
        """The bytes of the gradient. It must have arrived."""
        return stored_bytes(self.gradient)


@dataclass(eq=False)
class Slot:
    """One parameter of an optimizer.

    Attributes:
        index: the parameter's place in the declared order, which is the same on every rank.
        position: the place in the agreed forward order; until there is one, ``index``.
        priority: as in BytePS, a larger value is more urgent. Parameters whose gradients travel
            together have the same one.
        transfer: the gradient submitted last, or the delayed one that takes its place, until its
            update is finished or ``synchronize()`` has taken it over.
        averaged: the parameter's ``grad`` already is the average, so ``step()`` sends nothing.
        delay: the staleness of the averages, in steps (``delays.py``); 0: none.
        delayed: gradients that were submitted and that later steps use, the oldest first.
        submitted: for a parameter with a delay: this iteration's gradient was submitted.
        sparse: gradients of this parameter may be sparse.
        dense: they are dense nevertheless, because the parameter is that of another layer, too. It
            is so if the last gradient was.
        sent: a gradient of this parameter was sent before.
        known: the gradient that was sent last, or the delayed one that took its place, while it
            exists. If the parameter has another one or none, the script cleared or replaced it.
        memory: what held the gradient after the last backward pass, while it exists.
        partial: a gradient that ``step()`` has used, and that holds the average in this rank's
            shard only. The training thread clears it when the gradient is cleared or unsharded.
        kept: the sum of the gradients of steps that have updated nothing (``kept.py``).
        merged: the gradient to which ``kept`` was added, until ``step()`` has used it.
        strides: those of the parameter when this rank's shard of its state was updated last.
        updated: set unless an update is outstanding. Each update has a flag of its own.
        gradient_text: the name of the gradient in messages.
        parameter_text: the name of the parameter in messages.
    """

    name: str
    parameter: Tensor
    index: int
    passes_left: int
    sparse: bool = False
    dense: bool = False
    position: int = 0
    priority: int = 0
    transfer: Transfer | None = None
    averaged: bool = False
    delay: int = 0
    delayed: deque[Transfer] = field(default_factory=deque)
    submitted: bool = False
    sent: bool = False
    known: weakref.ref[Tensor] | None = None
    memory: weakref.ref[torch.UntypedStorage] | None = None
    partial: Tensor | None = None
    kept: Tensor | None = None
    merged: Tensor | None = None
    strides: tuple[int, ...] | None = None
    updated: Flag = field(default_factory=Flag)
    hooks: list[RemovableHandle] = field(default_factory=list)
    gradient_text: str = field(init=False)
    parameter_text: str = field(init=False)

    def __post_init__(self) -> None:
        self.gradient_text = f"the gradient of '{self.name}'"
        self.parameter_text = f"parameter '{self.name}'"
        self.position = self.index
        self.priority = -1 - self.index
        self.updated.set()

    def no_gradient(self) -> Tensor:
        """A gradient for a parameter that has none: zeros, or no rows."""
        if self.sparse and not self.dense:
            return no_rows(self.parameter)
        return torch.zeros_like(self.parameter, requires_grad=False)

    @property
    def is_sent(self) -> bool:
        """Whether nothing has to be sent any more, so that ``step()`` uses what there is."""
        return self.transfer is not None or self.averaged or self.submitted

    @property
    def unclaimed(self) -> bool:
        """Whether a gradient was submitted for which ``step()`` was not yet called."""
        # The order matters: the updater clears the transfer before it sets ``updated``.
        return not self.update_outstanding and self.transfer is not None

    @property
    def is_replaced(self) -> bool:
        """Whether the script has cleared or replaced the gradient that was sent last."""
        gradient = self.parameter.grad
        return self.known is not None and (gradient is None or gradient is not self.known())

    @property
    def update_outstanding(self) -> bool:
        """Whether ``step()`` was called and the update is not finished."""
        return not self.updated.is_set()
