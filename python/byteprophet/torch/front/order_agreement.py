"""Makes all ranks adopt rank 0's forward order, which determines the gradients' priorities."""

from __future__ import annotations

from collections.abc import Mapping

from byteprophet.torch.front.order import ForwardOrder
from byteprophet.torch.front.slots import Slot
from byteprophet.torch.sync.agreement import agree
from byteprophet.torch.sync.synchroniser import Synchroniser


class OrderAgreement:
    """The order agreement of one optimizer.

    ``reached`` is True from an agreement until the parameters or the ranks change.
    """

    def __init__(
        self, slots: Mapping[int, Slot], order: ForwardOrder, synchroniser: Synchroniser
    ) -> None:
        self._slots = slots
        self._order = order
        self._synchroniser = synchroniser
        self.reached = False

    def declare(self) -> None:
        """Declare the name of the agreement's message. Every rank must call this.

        This is not left to the first message, because a rank that joins later must declare the
        same names.
        """
        self._synchroniser.declare([self._name()])

    def agree(self, timeout_s: float) -> None:
        """Make all ranks adopt rank 0's order. Every rank must call this at the same step.

        If rank 0 has not seen a forward pass, ``reached`` stays False, and the next step tries
        again. Raises ``TimedOut`` if rank 0 does not send its order in time.
        """
        slots = list(self._slots.values())
        if not slots:
            return
        place = {slot: number for number, slot in enumerate(slots)}
        order = self._order.order
        agreed = agree(
            self._synchroniser,
            self._name(),
            None if order is None else [place[slot] for slot in order],
            len(slots),
            timeout_s,
        )
        if agreed is not None:
            self.reached = True
            in_order = [slots[number] for number in agreed]
            places = self._synchroniser.agreed([slot.name for slot in in_order])
            for position, (slot, message) in enumerate(zip(in_order, places, strict=True)):
                slot.position, slot.priority = position, -1 - message

    def _name(self) -> str:
        first = next(iter(self._slots.values()))
        return f"byteprophet.order.{first.name}.{len(self._slots)}"
