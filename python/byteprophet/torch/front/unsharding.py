"""Gathers the other ranks' shards when a gradient is accessed or optimizer state is saved.

A gradient that ``step()`` has used stays *partial* until it is cleared: it holds the average in
this rank's shard only. Any access unshards it first, whether by the script or by a backward pass
that adds to it. Every rank must then do the same, because the others have the remaining shards.
If the script has kept a reference to a gradient that it has cleared, any access unshards that one.

Threads: the training thread; ``take`` also runs in autograd's, while the training thread waits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from byteprophet.job.owners import Owners
from byteprophet.tensor_names import gradient_name
from byteprophet.torch.front.slots import Slot, Transfer
from byteprophet.torch.front.updates import Updater
from byteprophet.torch.front.weakly import weakly
from byteprophet.torch.sync.completion import Call, Completion
from byteprophet.torch.sync.synchroniser import Synchroniser
from byteprophet.torch.tensors import pending

TOUCHED = Call("read or changed gradients where this one has")


class Unsharding:
    """Unshards tensors of one optimizer; ``slots`` holds its parameters by ``id``."""

    def __init__(
        self,
        slots: Mapping[int, Slot],
        synchroniser: Synchroniser,
        updater: Updater,
        timeout_s: float,
    ) -> None:
        self._slots = slots
        self._synchroniser = synchroniser
        self._updater = updater
        self._timeout_s = timeout_s

    def unshard(
        self,
        tensors: Iterable[tuple[Slot, Tensor]],
        call: Call,
        owners: Owners | None = None,
    ) -> None:
        """Wait until ``tensors``, each as large as its slot's parameter, are whole.

        ``call`` names the script's call, which all ranks must make. ``owners``: of the shards, if
        they are not those of now.
        """
        completions = []
        for slot, tensor in tensors:
            what = f"other ranks' shards of the {call.of} of '{slot.name}'"
            completion = Completion(what, call)
            self._synchroniser.unshard(slot.name, tensor, call.of, done=completion, owners=owners)
            completions.append((slot, completion))
        for slot, completion in completions:
            completion.wait(self._timeout_s, self._synchroniser, gradient_name(slot.name))

    def keep(self, transfer: Transfer) -> None:
        """Keep a gradient that ``step()`` uses as partial: any access unshards it first."""
        slot = transfer.slot
        slot.partial = transfer.gradient
        pending.mark(transfer.gradient, slot.gradient_text, weakly(self.take, slot))

    def take(self, slot: Slot) -> None:
        """Unshard the partial gradients, because that of ``slot`` is accessed or added to."""
        if slot.partial is None:
            return
        # Unshard all of them, because ranks may access different ones first.
        slots = [each for each in self._slots.values() if each.partial is not None]
        self._updater.wait_updated(slots)
        self.unshard(
            (
                (each, each.partial)
                for each in slots
                if each.partial is not None and each.parameter.grad is each.partial
            ),
            TOUCHED,
        )
        for each in slots:
            if each.parameter.grad is each.partial:
                self.drop(each)
            else:
                self.leave(each)

    def leave(self, slot: Slot) -> None:
        """Stop tracking the partial gradient of ``slot``, which the script has cleared.

        Whoever still holds it unshards it on access.
        """
        if slot.partial is not None:
            partial, slot.partial = slot.partial, None
            self.leave_shard(slot, partial)

    def leave_shard(self, slot: Slot, gradient: Tensor) -> None:
        """Stop tracking ``gradient``, a former one of ``slot`` of which this rank has a shard.

        Whoever still holds it unshards it on access.
        """
        pending.unmark(gradient)
        pending.mark_weakly(gradient, slot.gradient_text, self._later(slot))

    def _later(self, slot: Slot) -> Callable[[Tensor], None]:
        """What unshards a former gradient of ``slot``. It keeps nothing alive."""
        bound, held, text = weakref.ref(self), weakref.ref(slot), slot.gradient_text

        def unshard(gradient: Tensor) -> None:
            alive, its_slot = bound(), held()
            if alive is None or its_slot is None:
                raise RuntimeError(
                    f"byteprophet: {text} is read after its optimizer is gone, and this rank has "
                    "only a shard of it: read it before, on all ranks"
                )
            alive._updater.wait_updated([its_slot])
            alive.unshard([(its_slot, gradient)], TOUCHED)
            pending.unmark(gradient)

        return unshard

    def drop(self, slot: Slot) -> None:
        """Stop tracking the partial gradient of ``slot``, which is zeroed or whole."""
        if slot.partial is not None:
            pending.unmark(slot.partial)
            slot.partial = None
