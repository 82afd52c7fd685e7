"""The interface between the front and a synchroniser, which averages gradients over all ranks.

The front (``front/``) records the forward order, waits per layer, applies updates and keeps results
exact. The synchroniser computes the average. The front knows only this interface, so adding a
synchroniser takes one file and a line in ``make.py``.

A synchroniser may leave a rank with the average of only its *shard* of a gradient's elements. The
rank then updates only that shard of the parameter, and keeps only that shard of the optimizer's
state. ``all_gather`` brings the new values to the other ranks. ``unshard`` gathers such a gradient
when it is read.

Threads: ``submit_gradient`` may be called from the main thread and from autograd's threads,
``all_gather`` from the updater's. ``done`` is called exactly once per call. It is called from a
thread of the synchroniser or, if nothing has to be sent, from within the call. It must not block.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from byteprophet.job.owners import Owners
from byteprophet.torch.sync.completion import Done
from byteprophet.torch.sync.compression_state import CompressionState
from byteprophet.torch.tensors.naming import Names


class Synchroniser(Protocol):
    """Averages gradients, and sums messages, over all ranks."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def names(self) -> Names:
        """The tensors that the names given to ``declare`` stand for. The front maintains it."""
        ...

    @property
    def rank(self) -> int:
        """The rank of this process, 0 to ``size - 1``."""
        ...

    @property
    def bucketed(self) -> bool:
        """Whether a gradient may wait for others of its bucket, until ``flush``."""
        ...

    @property
    def takes_rows(self) -> bool:
        """Whether gradients of declared parameters may be sparse (``tensors/sparse.py``)."""
        ...

    @property
    def compression(self) -> CompressionState | None:
        """What is kept of compressed gradients; None: none is compressed."""
        ...

    @property
    def shards(self) -> bool:
        """Whether ``shard`` may return anything but None."""
        ...

    @property
    def owners(self) -> Owners:
        """Who owns what of parameters that are sharded."""
        ...

    @property
    def layout_version(self) -> int:
        """A number that changes whenever results of ``shard`` may have changed."""
        ...

    def declare(self, names: Sequence[str]) -> None:
        """Announce names before they are submitted, in the same order on every rank."""

    def declare_parameters(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """Replace the set of parameters.

        Every rank must call this, with the same parameters, before it declares their names. Raises
        ``ValueError`` if a parameter cannot take part.
        """

    def submit_gradient(
        self, parameter: str, gradient: Tensor, *, priority: int, done: Done
    ) -> None:
        """Replace ``gradient`` in place by its average over all ranks, then call ``done``.

        If this rank has a ``shard`` of the parameter, only the shard is averaged.

        ``gradient`` must be dense and contiguous, or sparse, if ``takes_rows`` is True and the
        parameter was declared as one with sparse gradients. The average of a sparse gradient has
        the union of all ranks' rows, each once. The gradient belongs to the synchroniser until
        ``done(None)``, or ``done(error)`` if the average failed. Only then may the parameter's next
        gradient be submitted; where averages are delayed by k steps, up to k further ones may be
        before. A larger ``priority`` is more urgent. Every rank submits gradients of the same
        parameters.

        Raises ``ValueError`` if the tensor's type cannot be sent.
        """

    def submit_message(self, name: str, message: Tensor, *, done: Done) -> None:
        """Replace ``message`` in place by its sum over all ranks, then call ``done``.

        The rules of ``submit_gradient`` apply. ``name`` must have been declared and must not be a
        gradient's.
        """

    def shard(self, parameter: str) -> slice | None:
        """The elements of this parameter, in memory order, that this rank owns (None: all).

        This changes only between two steps, if a plan is adopted or the parameters change.
        """
        ...

    def flush(self, updating: Collection[str]) -> None:
        """Start incomplete buckets, because all gradients of this iteration were submitted.

        ``updating`` holds the parameters that will be updated now. The sharded ones among them will
        be all-gathered.
        """

    def all_gather(self, parameter: str, tensor: Tensor, *, done: Done) -> None:
        """Gather the other ranks' shards of ``tensor``, in place, then call ``done``.

        This is for a parameter's new value, once per iteration, after ``flush``.
        """

    def unshard(
        self,
        parameter: str,
        tensor: Tensor,
        what: str,
        *,
        done: Done,
        owners: Owners | None = None,
    ) -> None:
        """Like ``all_gather``, but at any time and for any tensor.

        ``tensor`` must have as many elements as the parameter. All ranks must pass the same
        ``what``, and the same ``owners`` of the shards, if they are not those of now.
        """

    def declare_buffers(self) -> None:
        """Declare names that parameters may share later, after all others of the optimizer."""

    def agreed(self, parameters: Sequence[str]) -> Sequence[int]:
        """Use the forward order ``parameters``. Every rank calls it between the same two steps.

        Returns the place of each parameter among all messages, in forward order. Parameters that
        travel together have the same place.
        """
        ...

    def holds_back(self, parameter: str) -> bool:
        """Whether the gradient, which was submitted, arrives only if others are submitted too."""
        ...

    def separate(self) -> None:
        """Send gradients one by one until ``agreed`` is called, if names would be shared."""

    def resumed(self) -> None:
        """Note that the ranks and the servers may have changed. ``agreed`` will be called."""

    def awaited(self, name: str) -> str:
        """Name who or what ``name`` seems to wait for, in messages to the user.

        ``name`` is the name of a message or of a gradient (``tensor_names.py``).
        """
        ...

    def late(self, name: str) -> list[int]:
        """The ranks whose part of ``name`` has not arrived, as far as is known."""
        ...

    def begin_iteration(self) -> int:
        """Begin an iteration and return its number, before its first gradient is submitted.

        Numbers ascend and are the same on all ranks. If a policy counts iterations, its numbers are
        used, so they match those of recorded transfers.
        """
        ...

    def reconfigure(self, settings: Mapping[str, int]) -> None:
        """Change settings of the scheduler, for gradients submitted from now on.

        Every rank calls it between the same two steps. Raises ``ValueError`` if a setting is not
        accepted.
        """

    def preferred_partition_bytes(self) -> int:
        """The partition size that suits this rank's link; 0 if unknown or without preference."""
        ...

    def let_go(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` seconds until no thread holds a tensor of a finished call."""

    def close(self) -> None:
        """Let submitted tensors finish, then release threads."""


class Unsharded:
    """A base class for synchronisers that average gradients one by one and never shard them."""

    takes_rows = False
    compression: CompressionState | None = None
    shards = False
    layout_version = 0

    @property
    def bucketed(self) -> bool:
        """False: every gradient is sent at once."""
        return False

    @property
    def owners(self) -> Owners:
        """Return those of a job of one rank, because nothing is sharded."""
        return Owners.equal(1)

    def declare_parameters(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """Do nothing: their names are declared separately."""

    def shard(self, parameter: str) -> slice | None:
        """Return None: every rank owns all elements."""
        return None

    def flush(self, updating: Collection[str]) -> None:
        """Do nothing: there are no buckets."""

    def all_gather(self, parameter: str, tensor: Tensor, *, done: Done) -> None:
        """Call ``done`` at once: every rank updates all elements."""
        done(None)

    def unshard(
        self,
        parameter: str,
        tensor: Tensor,
        what: str,
        *,
        done: Done,
        owners: Owners | None = None,
    ) -> None:
        """Call ``done`` at once: nothing is sharded."""
        done(None)

    def declare_buffers(self) -> None:
        """Do nothing: every parameter has a name of its own."""

    def agreed(self, parameters: Sequence[str]) -> Sequence[int]:
        """Return the places of ``parameters``: priorities express the order."""
        return range(len(parameters))

    def holds_back(self, parameter: str) -> bool:
        """Return False: every gradient is sent at once."""
        return False

    def separate(self) -> None:
        """Do nothing: gradients are sent one by one."""

    def resumed(self) -> None:
        """Do nothing: there is no state to discard."""

    def let_go(self, timeout_s: float) -> None:
        """Return at once: threads hold no tensors of finished calls."""

    def awaited(self, name: str) -> str:
        """Return a general text, because the cause is not known."""
        return "another worker or a server may be gone"

    def late(self, name: str) -> list[int]:
        """Return an empty list, because late ranks are not known."""
        return []
