"""The fronts of all live optimizers, and the interface by which other code uses them.

Observers, flush points and the public functions find fronts here. They use only the interface
``LiveFront``, so they need not import the front itself.

Threads: only the training thread changes the set.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor, nn

from byteprophet.torch.sync import outstanding
from byteprophet.torch.sync.completion import Call
from byteprophet.torch.sync.synchroniser import Synchroniser


class LiveFront(Protocol):
    """The interface of a front, which ``front/front.py`` implements."""

    serial: int
    """A number that ascends in the order in which fronts are made, the same on every rank."""
    synchroniser: Synchroniser
    sends_missing: bool
    """Whether gradients that backward has not submitted are sent when averages are needed."""

    @property
    def timeout_s(self) -> float:
        """How long to wait for other ranks, in seconds."""
        ...

    @property
    def waited_ns(self) -> int:
        """How long the training thread has waited for updates in total."""
        ...

    @property
    def accumulates(self) -> bool:
        """Whether some steps keep gradients, and only one in several exchanges and updates."""
        ...

    @property
    def compresses(self) -> bool:
        """Whether some gradients travel compressed."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether the next step keeps gradients."""
        ...

    @property
    def averages_parameters(self) -> bool:
        """Whether parameters are averaged in place of gradients."""
        ...

    @property
    def delays(self) -> bool:
        """Whether averages of some parameters are used by later steps."""
        ...

    @property
    def expected(self) -> bool:
        """Whether averages are due that no ``step()`` has used."""
        ...

    def parameter_names(self) -> Mapping[int, str]:
        """The names of the parameters, by ``id`` of the parameter."""
        ...

    def needed_positions(self, module: nn.Module) -> Iterator[int]:
        """The forward-order positions of the parameters that ``module`` needs before it runs."""
        ...

    def manages(self, parameters: Iterable[Tensor]) -> bool:
        """Whether any of ``parameters`` is this optimizer's."""
        ...

    def warn_saved(self, parameters: Iterable[Tensor]) -> None:
        """Warn once if ``parameters``, which the script saves, are this rank's own now."""

    def shards_all(self, parameters: Sequence[Tensor]) -> bool:
        """Whether this optimizer manages all ``parameters`` and their gradients may be shards."""
        ...

    def averages(
        self, parameters: Iterable[Tensor]
    ) -> AbstractContextManager[list[tuple[Tensor, slice | None]]]:
        """Yields averaged gradients, each with the shard that this rank has (None: all of it)."""
        ...

    def synchronize(self, call: Call) -> None:
        """Wait until every ``grad`` is the average. Error messages name the script's ``call``."""

    def finish(self) -> None:
        """Wait until no update is outstanding."""

    def finish_averages(self) -> None:
        """Wait until delayed averages of earlier iterations have arrived."""

    def zero(
        self, parameters: Iterable[Tensor], zero: Callable[[], None], set_to_none: bool
    ) -> None:
        """Clear the gradients of ``parameters`` by calling ``zero``, except those in flight."""

    def release(self, parameters: Sequence[Tensor]) -> None:
        """Release parameters that another optimizer takes over."""

    def before_compiling(self) -> None:
        """Finish all updates, because torch is about to compile."""

    def agree_again(self) -> None:
        """Agree on rank 0's order again at the next step, because the ranks may have changed."""

    def drain(self) -> None:
        """Wait until nothing of this optimizer is in flight."""


_fronts: weakref.WeakSet[LiveFront] = weakref.WeakSet()


def register(front: LiveFront) -> None:
    """Register ``front``, which is kept weakly."""
    _fronts.add(front)


def live_fronts() -> list[LiveFront]:
    """The fronts of all live optimizers, in the order of creation, the same on every rank."""
    return sorted(_fronts, key=lambda front: front.serial)


def finish_all() -> None:
    """Wait until no front has outstanding updates."""
    for front in live_fronts():
        front.finish()


def _finish(averages: bool) -> None:
    finish_all()
    for front in live_fronts() if averages else ():
        front.finish_averages()


outstanding.finished_by(_finish)


def forget_all() -> None:
    """Forget all fronts, in a forked child, which has none of our threads."""
    _fronts.clear()
