"""What the front asks of whatever makes a gradient the same on all ranks.

The front (``front.py``) records order, waits per layer, applies updates and keeps results exact.
How the average comes about is a synchroniser's business; the front knows only this interface, so
another one (all-reduce, a mix per parameter) is a file of its own and a line in
``make_synchroniser``.

Threads: ``submit`` may be called from the main thread and from autograd's threads. ``done`` is
called exactly once per submission, from a thread of the synchroniser or, when nothing has to
travel, from within ``submit``; it must not block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from byteprophet.torch.layer_spans import process_layers
from byteprophet.torch.naming import Names

Done = Callable[[BaseException | None], None]


class Synchroniser(Protocol):
    """Makes tensors the same on all ranks, one at a time, most urgent first."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def names(self) -> Names:
        """What names given to ``declare`` stand for; kept by the front."""
        ...

    @property
    def rank(self) -> int:
        """Of the calling process, 0 to ``size - 1``."""
        ...

    def declare(self, names: Sequence[str]) -> None:
        """Announce names, in the same order on every rank, before any of them is submitted."""

    def submit(
        self, name: str, tensor: Tensor, *, priority: int, average: bool, done: Done
    ) -> None:
        """Replace ``tensor`` in place by its average (or sum) over all ranks, then call ``done``.

        ``tensor`` is dense and contiguous and belongs to the synchroniser until ``done(None)``, or
        ``done(error)`` when it cannot be completed. ``priority``: larger is more urgent. A name may
        be submitted again only after it is done. Every rank submits the same names.

        Raises ``ValueError`` for a tensor type that cannot be sent.
        """

    def begin_iteration(self) -> None:
        """Called before the first gradient of an iteration is submitted."""

    def reconfigure(self, settings: Mapping[str, int]) -> None:
        """Change settings of the scheduler, for gradients submitted from now on.

        Every rank calls it between the same two steps. ``ValueError`` for what it does not accept.
        """

    def preferred_partition_bytes(self) -> int:
        """The partition size that would suit this rank's link; 0: not known, or no wish."""
        ...

    def close(self) -> None:
        """Let what was submitted finish, then release threads; a later ``submit`` starts anew."""


class Alone:
    """A job of one rank: everything is its own average."""

    size = 1
    rank = 0

    def __init__(self) -> None:
        self.names: Names = {}
        self._iterations = 0

    def declare(self, names: Sequence[str]) -> None:
        """Nothing to announce."""

    def submit(
        self, name: str, tensor: Tensor, *, priority: int, average: bool, done: Done
    ) -> None:
        """Done at once."""
        done(None)

    def begin_iteration(self) -> None:
        """Only spans are told."""
        self._iterations += 1
        process_layers.first_gradient(self._iterations)

    def reconfigure(self, settings: Mapping[str, int]) -> None:
        """Nothing is scheduled."""

    def preferred_partition_bytes(self) -> int:
        """No wish."""
        return 0

    def close(self) -> None:
        """Nothing to release."""


SYNCHRONISERS = ("byteps",)


def make_synchroniser(name: str) -> Synchroniser:
    """The synchroniser called ``name``; ``ValueError`` names those that exist."""
    if name == "byteps":
        from byteprophet.torch.byteps_synchroniser import process_synchroniser

        return process_synchroniser()
    raise ValueError(
        f"sync={name!r}: there is no such synchroniser; have {', '.join(SYNCHRONISERS)}"
    )
