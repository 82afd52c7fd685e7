"""The interface between the front and code that changes settings between two steps on all ranks."""

from __future__ import annotations

from typing import Protocol

DRAIN_S = 10.0
"""How long the end of a job waits for a message that may never arrive."""


class BetweenSteps(Protocol):
    """Changes settings between two steps. The training thread calls all methods."""

    @property
    def settled(self) -> bool:
        """Whether no further changes will follow."""

    def declare(self) -> None:
        """Declare names of messages. Called on every rank when an optimizer declares its names."""

    def after_step(self, owner: str, agreed: bool) -> None:
        """Called after each step of the optimizer ``owner``.

        ``agreed`` says whether all ranks have agreed on its order. If one object serves several
        optimizers, only the steps of one count: the one that steps first after ``declare``. Raises
        ``RuntimeError`` if other ranks do not answer.
        """

    def restart(self) -> None:
        """Start again with the initial settings, because the ranks may have changed."""

    def drain(self) -> None:
        """Wait until no message is in flight, but only for a while.

        At the end of a job, a message may never arrive.
        """
