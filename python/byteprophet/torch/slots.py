"""Plain records: a parameter as the front sees it, and a gradient on its way.

Who writes what: a slot's fields belong to the thread that trains (the main thread, or the autograd
thread that runs the parameter's hook; never two at a time for one parameter), except that the
updater thread takes ``transfer`` away before it sets ``updated``, which ``step()`` cleared. A
transfer's ``plan``, ``arrived`` and ``error`` are written under the updater's lock, ``error``
before ``arrived`` is set.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from byteprophet.torch.view_step import Plan


@dataclass(eq=False)
class Transfer:
    """One gradient that was submitted.

    ``gradient`` is what the optimizer will see; ``wire`` is what travels: the same memory
    (``in_place``), or a compressed or contiguous copy, which ``context`` (the compressor's) helps
    to turn back. ``iteration`` is the one of its backward, as spans are counted. ``share``: only of
    these elements, in memory order, this rank has the average and makes the update; None: of all.
    """

    slot: Slot
    gradient: Tensor
    wire: Tensor
    context: Any
    in_place: bool
    plan: Plan | None = None
    group: int = 0
    iteration: int = 0
    share: slice | None = None
    arrived: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


@dataclass(eq=False)
class Slot:
    """One parameter of an optimizer.

    ``index`` is its place in the declared order, the same on every rank. ``priority`` is BytePS':
    larger is more urgent. ``transfer`` is the gradient submitted last, until its update is finished
    or it was taken over by ``synchronize()``. ``averaged``: the parameter's ``grad`` already is the
    average, ``step()`` has nothing to send. ``updated`` is set unless an update is outstanding.
    ``gradient_text`` and ``parameter_text`` name them for people.
    ``partial``: a gradient that ``step()`` has used, and that is the average in this rank's share
    only; written like ``transfer``, and by the thread that trains once it is cleared or completed.
    """

    name: str
    parameter: Tensor
    index: int
    passes_left: int
    priority: int = 0
    transfer: Transfer | None = None
    averaged: bool = False
    partial: Tensor | None = None
    updated: threading.Event = field(default_factory=threading.Event)
    hooks: list[RemovableHandle] = field(default_factory=list)
    gradient_text: str = field(init=False)
    parameter_text: str = field(init=False)

    def __post_init__(self) -> None:
        self.gradient_text = f"the gradient of '{self.name}'"
        self.parameter_text = f"parameter '{self.name}'"
        self.priority = -1 - self.index
        self.updated.set()

    @property
    def unclaimed(self) -> bool:
        """Whether a gradient is on its way, or there, that ``step()`` was not yet called for."""
        # In this order: the updater takes the transfer away before it says that it is done.
        return not self.update_outstanding and self.transfer is not None

    @property
    def update_outstanding(self) -> bool:
        """Whether ``step()`` was called and the update is not finished."""
        return not self.updated.is_set()
