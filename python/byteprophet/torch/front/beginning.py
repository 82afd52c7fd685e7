"""Finds out whether training has begun: whether any rank has had a gradient.

A rank without gradients takes part with zeros, because others may have some. But a script may call
``step()`` before any backward pass, such as to make optimizer state or to please a scheduler. In
plain torch, that updates nothing. So until training has begun, ranks tell each other whether they
have gradients, after they have sent them. If none has, the zeros are taken back.

Threads: the training thread calls everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from byteprophet.torch.front.slots import Slot
from byteprophet.torch.sync.agreement import Collection
from byteprophet.torch.sync.synchroniser import Synchroniser


class Beginning:
    """Tells whether training has begun; one per optimizer. ``slots`` has its parameters by ``id``.

    ``is_over`` is True once all ranks know that one of them has had a gradient.
    """

    def __init__(self, slots: Mapping[int, Slot], synchroniser: Synchroniser) -> None:
        self._slots = slots
        self._synchroniser = synchroniser
        self.is_over = False

    def declare(self) -> None:
        """Declare the name of the message, as ``OrderAgreement`` does, on every rank."""
        self._synchroniser.declare([self._name()])

    def has_begun(self, mine: bool, timeout_s: float) -> bool:
        """Whether any rank has gradients; ``mine``: this one has. Every rank must call this.

        Raises ``TimedOut`` if a rank does not say it in time.
        """
        told = Collection(self._synchroniser, self._name(), int(mine), "gradients of all ranks")
        self.is_over = any(told.wait(timeout_s))
        return self.is_over

    def _name(self) -> str:
        first = next(iter(self._slots.values()))
        return f"byteprophet.begun.{first.name}.{len(self._slots)}"


def have_gradients(slots: Iterable[Slot]) -> bool:
    """Whether any of ``slots`` has a gradient of this rank."""
    return any(slot.parameter.grad is not None or slot.kept is not None for slot in slots)
