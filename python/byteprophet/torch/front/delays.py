"""Delays averages: ``step()`` uses those of an earlier iteration, as a strategy says.

When a gradient of a parameter with a delay of k steps is submitted, the one that was submitted k
iterations before takes its place: as ``slot.transfer``, and as the parameter's ``grad``. In the
first k steps there is none, and ``grad`` is None. So everything that comes after works as without
delays, and sees the average that this step uses: clipping, ``synchronize()``, and the update, with
the hyperparameters of this step.

Between two steps, ``slot.delayed`` has the gradients of the last k iterations, or of all iterations
if there were fewer. They are the same iterations on every rank, because every rank submits once per
step. A script that would submit twice, or drop a gradient, is refused: the average in question
belongs to another iteration. A fast rank waits in step t for the average of iteration t - k, to
which every rank contributes. So it is at most k iterations ahead of the slowest one.

Saved states have the averages of the last k iterations (``saved``), so that training goes on as if
it had not been interrupted. Nothing is applied early.

Threads: the training thread calls everything; ``turn`` also runs in autograd's, while the training
thread waits for it. A delayed transfer is not known to the updater until it has left the queue. The
synchroniser's threads write to its gradient until they set ``arrived``. The script cannot reach
this gradient by its parameter. If it has kept a reference, access waits until ``arrived`` is set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from byteprophet.errors import warn
from byteprophet.torch.front.slots import Slot, Transfer
from byteprophet.torch.front.updates import Updater
from byteprophet.torch.tensors import pending

DELAYED = "byteprophet_delayed"
"""The key under which ``state_dict()`` has the averages that were not used yet, if there are any:
a list for each parameter, by its name, the oldest average first."""


class Delays:
    """The delayed averages of one optimizer; ``slots`` holds its parameters by ``id``."""

    def __init__(self, slots: Mapping[int, Slot], updater: Updater) -> None:
        self._slots = slots
        self._updater = updater

    def __bool__(self) -> bool:
        """Whether any parameter has a delay."""
        return any(slot.delay for slot in self._slots.values())

    def turn(self, slot: Slot) -> None:
        """Let the delayed gradient take the place of the one that was submitted just now."""
        submitted = slot.transfer
        assert submitted is not None
        slot.delayed.append(submitted)
        slot.submitted = True
        self._guard(submitted)
        slot.transfer = slot.parameter.grad = None
        if len(slot.delayed) > slot.delay:
            oldest = slot.delayed.popleft()
            pending.unmark(oldest.gradient)
            slot.transfer, slot.parameter.grad = oldest, oldest.gradient

    def check(self, participants: Iterable[Slot]) -> None:
        """Raise ``RuntimeError`` unless ``step()`` would use the average whose turn it is."""
        taking_part = {*participants}
        for slot in self._delayed():
            if slot.delayed and slot not in taking_part:
                self._refuse(slot, "is frozen while averages of it are delayed")
            if slot.submitted and slot.averaged:
                if slot.parameter.grad is None:
                    self._refuse(slot, "had its average cleared before step() used it")
            elif slot.submitted:
                due = None if slot.transfer is None else slot.transfer.gradient
                if slot.parameter.grad is not due:
                    self._refuse(slot, "had its gradient replaced after backward")

    def check_cleared(self, slots: Iterable[Slot]) -> None:
        """Raise ``RuntimeError`` if the script clears a gradient before ``step()`` has used it."""
        for slot in slots:
            if slot.submitted:
                self._refuse(slot, "had its gradient cleared before step() used it")

    def check_complete(self, slot: Slot) -> None:
        """Raise ``RuntimeError`` if a backward pass adds to a gradient that was submitted."""
        if slot.submitted:
            self._refuse(slot, "had a backward pass after its gradient was sent")

    def wait(self) -> None:
        """Wait until no delayed gradient is in flight. Raises ``TimedOut`` if one is late."""
        self._updater.wait_transfers(self._transfers())

    def wait_earlier(self) -> None:
        """Wait until no delayed gradient of an earlier iteration is in flight.

        All ranks have submitted these, and in this iteration, other ranks may not have come so far.
        """
        self._updater.wait_transfers(self._earlier())

    def refuse_unused(self, call: str) -> None:
        """Raise ``RuntimeError`` if no step has used the averages whose turn it is.

        They have left the queue, so a state would not have them.
        """
        for slot in self._delayed():
            if slot.submitted:
                raise RuntimeError(
                    f"byteprophet: {call} between backward() and step(): averages of the gradient "
                    f"of '{slot.name}' are delayed, and no update has used the one whose turn it "
                    "is: call it after step()"
                )

    def saved(self) -> dict[str, list[Tensor]]:
        """Copies of the delayed averages, the oldest first, by the parameter's name."""
        self.wait()
        with pending.values():
            return {
                slot.name: [each.gradient.clone() for each in slot.delayed]
                for slot in self._delayed()
                if slot.delayed
            }

    def checked(self, saved: object, call: str) -> dict[str, list[Tensor]]:
        """What ``saved`` returned, from a state that ``call`` loads.

        Raises ``ValueError`` if these averages are not of this optimizer, or have other delays.
        """
        if not isinstance(saved, Mapping):
            raise ValueError(f"{call}: {DELAYED!r} must be a table of averages by parameter")
        slots = {slot.name: slot for slot in self._slots.values()}
        for name, averages in saved.items():
            slot = slots.get(name)
            if slot is None or not isinstance(averages, list):
                raise ValueError(f"{call}: it has delayed averages of {name!r}, which is not here")
            if len(averages) > slot.delay:
                raise ValueError(
                    f"{call}: it has {len(averages)} delayed average(s) of {name!r}, which has a "
                    f"staleness of {slot.delay} here: use the strategy under which it was saved, "
                    f"or drop them: del state[{DELAYED!r}]"
                )
            shape = slot.parameter.shape
            if not all(isinstance(each, Tensor) and each.shape == shape for each in averages):
                raise ValueError(f"{call}: a delayed average of {name!r} has another shape")
        return dict(saved)

    def load(self, saved: Mapping[str, Sequence[Tensor]]) -> None:
        """Replace the delayed averages by ``saved``, which ``checked`` has returned."""
        self.wait()
        for slot in self._delayed():
            self.drop(slot)
            for average in saved.get(slot.name, ()):
                gradient = torch.empty_like(slot.parameter, requires_grad=False)
                gradient.copy_(average)
                transfer = Transfer(slot, gradient, gradient, None, in_place=True)
                transfer.arrived.set()
                slot.delayed.append(transfer)

    def drop(self, slot: Slot) -> None:
        """Forget the delayed averages of ``slot``."""
        for transfer in slot.delayed:
            pending.unmark(transfer.gradient)
        slot.delayed = deque()

    def warn_unused(self, why: str) -> None:
        """Warn if there are averages that no step has used."""
        count = sum(1 for slot in self._delayed() if slot.delayed)
        if count:
            warn(f"delayed averages of {count} parameter(s) were not used yet: {why}")

    def _guard(self, transfer: Transfer) -> None:
        """Make any access to the gradient wait until it is the average."""

        def arrived() -> None:
            self._updater.wait_transfers([transfer])
            pending.unmark(transfer.gradient)

        pending.mark(transfer.gradient, transfer.slot.gradient_text, arrived)

    def _delayed(self) -> Iterator[Slot]:
        return (slot for slot in self._slots.values() if slot.delay)

    def _transfers(self) -> Iterator[Transfer]:
        return (transfer for slot in self._delayed() for transfer in slot.delayed)

    def _earlier(self) -> Iterator[Transfer]:
        for slot in self._delayed():
            if slot.submitted and slot.transfer is not None:
                yield slot.transfer  # whose turn it is
            delayed = [*slot.delayed]
            yield from delayed[: len(delayed) - slot.submitted]

    def _refuse(self, slot: Slot, what: str) -> NoReturn:
        raise RuntimeError(
            f"byteprophet: parameter '{slot.name}' {what}, but its averages are delayed by "
            f"{slot.delay} step(s): call backward() and step() once each per iteration, or give "
            "it a staleness of 0 in the strategy"
        )
