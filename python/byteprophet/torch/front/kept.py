"""Keeps the gradients of steps that exchange nothing, for the step that does.

A strategy may let only every N-th call of ``step()`` exchange gradients and update. In the N - 1
calls before it, the gradients are added up here, and the script may clear its own as it likes. The
N-th gradient gets their sum and is divided by N before it is sent. The sum is made in the order of
the steps, so it has the bits of a script that accumulates N batches itself.

What was kept is used up when ``step()`` has taken the gradient it is in, and not before: a script
may drop a submitted gradient and compute another one.

Threads: the training thread calls everything; ``merge`` also runs in autograd's, while the training
thread waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from byteprophet.errors import warn
from byteprophet.torch.front.slots import Slot
from byteprophet.torch.tensors import pending
from byteprophet.torch.tensors.sparse import has_rows


class Kept:
    """The kept gradients of one optimizer, of which one in ``steps`` steps updates.

    ``slots`` holds the optimizer's parameters, by ``id`` of the parameter.
    """

    def __init__(self, slots: Mapping[int, Slot], steps: int) -> None:
        self._slots = slots
        self._done = 0  # steps since the last update
        self._warned: set[str] = set()
        self.steps = steps

    @property
    def keeps(self) -> bool:
        """Whether the next call of ``step()`` keeps gradients, and updates nothing."""
        return self._done < self.steps - 1

    def keep(self, slots: Iterable[Slot]) -> None:
        """Add the gradients of ``slots``, which ``step()`` would have used, to what is kept."""
        for slot in slots:
            gradient = slot.parameter.grad
            if gradient is None:
                continue
            refuse_unusable(slot, gradient)
            slot.dense = not gradient.is_sparse
            with torch.no_grad():
                if slot.kept is None:
                    slot.kept = gradient.detach().clone()
                else:
                    slot.kept.add_(gradient)
        self._done += 1

    def merge(self, slot: Slot, gradient: Tensor) -> None:
        """Make ``gradient``, the last of its N steps, the mean of all of them, unless it is."""
        if self.steps == 1 or self.holds(slot):
            return
        with torch.no_grad(), pending.values():
            if slot.kept is not None and gradient.is_sparse:
                gradient.copy_(slot.kept + gradient)  # rows are summed in this order
            elif slot.kept is not None:
                gradient.add_(slot.kept)
            gradient.div_(self.steps)
        slot.merged = gradient

    def merge_unsent(self, slots: Iterable[Slot]) -> None:
        """Merge what ``step()`` uses without sending it."""
        for slot in slots:
            if slot.is_sent:
                continue
            gradient = slot.parameter.grad
            if gradient is None and slot.kept is not None:
                gradient = slot.parameter.grad = slot.no_gradient()
            if gradient is not None:
                self.merge(slot, gradient)

    def holds(self, slot: Slot) -> bool:
        """Whether the parameter's gradient has what was kept in it already."""
        return slot.merged is not None and slot.merged is slot.parameter.grad

    def used(self) -> None:
        """End the step that has used all gradients: the next one is the first of N."""
        self._done = 0
        if self.steps > 1:
            self._forget()

    def restart(self) -> None:
        """Begin with the first of N steps, because the ranks may have changed."""
        if self._done:
            warn(f"{self._unused}: they are dropped, because ranks may have joined")
        self.used()

    def warn_unused(self, why: str) -> None:
        """Warn once for each ``why`` if there are gradients that no update has used."""
        if self._done and why not in self._warned:
            self._warned.add(why)
            warn(f"{self._unused}: {why}")

    def refuse(self, call: str) -> None:
        """Raises ``RuntimeError`` if there are gradients that ``call`` would make wrong."""
        if self._done:
            raise RuntimeError(
                f"byteprophet: {call} after {self._done} of {self.steps} accumulated steps: call "
                f"it before training, or after a step whose number is a multiple of {self.steps}"
            )

    @property
    def _unused(self) -> str:
        return f"gradients of {self._done} of {self.steps} accumulated steps were not used yet"

    def _forget(self) -> None:
        for slot in self._slots.values():
            slot.kept = slot.merged = None


def refuse_unusable(slot: Slot, gradient: Tensor, *, allows_graphs: bool = False) -> None:
    """Raises ``RuntimeError`` if the gradient of ``slot`` cannot be exchanged.

    ``allows_graphs``: it may itself be differentiable.
    """
    if gradient.requires_grad and not allows_graphs:
        why = "itself differentiable (create_graph=True) and cannot be exchanged"
    elif gradient.layout is torch.strided or (slot.sparse and has_rows(gradient)):
        return
    elif slot.sparse:
        why = "sparse, but not by rows, and cannot be exchanged"
    else:
        why = (
            "sparse and cannot be exchanged: give DistributedOptimizer model= or sparse=, and a "
            "sync without servers; or use a layer with sparse=False"
        )
    raise RuntimeError(f"byteprophet: the gradient of '{slot.name}' is {why}")
