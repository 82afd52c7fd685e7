"""What the front asks of whatever makes a gradient the same on all ranks.

The front (``front.py``) records order, waits per layer, applies updates and keeps results exact.
How the average comes about is a synchroniser's business; the front knows only this interface, so
another one (all-reduce, a mix per parameter) is a file of its own and a line in
``make_synchroniser``.

A synchroniser may leave a rank with the average of a *share* of a gradient's elements only. The
rank then updates that share of the parameter, and keeps that share of the optimizer's state, and
``spread`` brings it to the others. ``complete`` makes such a gradient whole for whoever reads it.

Threads: ``submit`` may be called from the main thread and from autograd's threads, ``spread`` from
the updater's. ``done`` is called exactly once per call, from a thread of the synchroniser or, when
nothing has to travel, from within the call; it must not block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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

    @property
    def grouped(self) -> bool:
        """Whether a gradient may wait for others to travel with, until ``flush``."""
        ...

    @property
    def in_order(self) -> bool:
        """Whether operations begin in the order in which one rank has asked for them.

        Then an iteration's first gradient is submitted when no update is outstanding: others may
        need such an update before they submit that gradient.
        """
        ...

    @property
    def shares(self) -> bool:
        """Whether ``share`` may be anything but None."""
        ...

    @property
    def arrangement(self) -> int:
        """Another number whenever ``share`` may be other than before."""
        ...

    def declare(self, names: Sequence[str]) -> None:
        """Announce names, in the same order on every rank, before any of them is submitted."""

    def declare_parameters(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """The parameters are now these; their gradients are submitted as ``Gradient.<name>``.

        As ``declare``, on every rank, and before it. ``ValueError`` for one that cannot take part.
        """

    def submit(
        self, name: str, tensor: Tensor, *, priority: int, average: bool, done: Done
    ) -> None:
        """Replace ``tensor`` in place by its average (or sum) over all ranks, then call ``done``.

        Of a parameter's gradient that is done for this rank's ``share``, where it has one.

        ``tensor`` is dense and contiguous and belongs to the synchroniser until ``done(None)``, or
        ``done(error)`` when it cannot be completed. ``priority``: larger is more urgent. A name may
        be submitted again only after it is done. Every rank submits the same names.

        Raises ``ValueError`` for a tensor type that cannot be sent.
        """

    def share(self, parameter: str) -> slice | None:
        """Which elements of this parameter, in memory order, are this rank's; None: all of them.

        Changes only between two steps: by a plan, or with the parameters.
        """
        ...

    def flush(self, updating: Collection[str]) -> None:
        """All gradients of this iteration were submitted; none need wait for others any more.

        ``updating``: the parameters that will be updated now, and ``spread`` where they are shared.
        """

    def spread(self, parameter: str, tensor: Tensor, *, done: Done) -> None:
        """Every rank has its share of ``tensor``: give each the others', in place, then ``done``.

        For a parameter's new value, once per iteration, after ``flush``.
        """

    def complete(self, parameter: str, tensor: Tensor, *, done: Done) -> None:
        """As ``spread``, at any time, of anything with as many elements as the parameter."""

    def agreed(self, parameters: Sequence[str]) -> None:
        """The forward needs ``parameters`` in this order. Called between the same two steps."""

    def awaited(self, name: str) -> str:
        """Who or what the submission ``name`` seems to wait for, for messages."""
        ...

    def begin_iteration(self) -> None:
        """Called before the first gradient of an iteration is submitted."""

    def reconfigure(self, settings: Mapping[str, int]) -> None:
        """Change settings of the scheduler, for gradients submitted from now on.

        Every rank calls it between the same two steps. ``ValueError`` for what it does not accept.
        """

    def preferred_partition_bytes(self) -> int:
        """The partition size that would suit this rank's link; 0: not known, or no wish."""
        ...

    def let_go(self, timeout_s: float) -> None:
        """Wait until no thread holds a tensor of what is done."""

    def close(self) -> None:
        """Let what was submitted finish, then release threads."""


class Unshared:
    """What a synchroniser inherits that gives every rank whole averages, one by one."""

    grouped = False
    in_order = False
    shares = False
    arrangement = 0

    def declare_parameters(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """Their names are declared, too."""

    def share(self, parameter: str) -> slice | None:
        """All elements."""
        return None

    def flush(self, updating: Collection[str]) -> None:
        """Nothing waits for others."""

    def spread(self, parameter: str, tensor: Tensor, *, done: Done) -> None:
        """Every rank updates all of it."""
        done(None)

    def complete(self, parameter: str, tensor: Tensor, *, done: Done) -> None:
        """It is."""
        done(None)

    def agreed(self, parameters: Sequence[str]) -> None:
        """Priorities say it."""

    def let_go(self, timeout_s: float) -> None:
        """Threads hold no tensors."""

    def awaited(self, name: str) -> str:
        """Not known."""
        return "another worker or a server may be gone"


class Alone(Unshared):
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


SYNCHRONISERS = ("byteps", "allreduce", "dear", "dear-planned")


def make_synchroniser(
    name: str,
    elementwise: bool,
    fusion: int | str,
    timeout_s: float,
    options: Mapping[str, object],
) -> Synchroniser:
    """The synchroniser called ``name``; ``ValueError`` names those that exist.

    ``elementwise``: whether updates may be made of any share of a parameter. ``fusion``: how
    gradients are grouped, as in ``DistributedOptimizer``. ``timeout_s``: how long a rank waits for
    the others at the start. ``options``: what else all ranks must have alike.
    """
    if name == "byteps":
        from byteprophet.torch.byteps_synchroniser import process_synchroniser

        return process_synchroniser()
    if name in SYNCHRONISERS:
        from byteprophet.torch import collective_synchroniser

        return collective_synchroniser.make(name, elementwise, fusion, timeout_s, options)
    raise ValueError(
        f"sync={name!r}: there is no such synchroniser; have {', '.join(SYNCHRONISERS)}"
    )
