"""The synchroniser of a job of one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from byteprophet.torch.sync.completion import Done
from byteprophet.torch.sync.synchroniser import Unsharded
from byteprophet.torch.tensors.naming import Names


class Alone(Unsharded):
    """The synchroniser of a job of one rank, where every gradient is already the average."""

    size = 1
    rank = 0
    takes_rows = True

    def __init__(self) -> None:
        self.names: Names = {}
        self._iterations = 0

    def declare(self, names: Sequence[str]) -> None:
        """Do nothing: there is no other rank."""

    def submit_gradient(
        self, parameter: str, gradient: Tensor, *, priority: int, done: Done
    ) -> None:
        """Call ``done`` at once."""
        done(None)

    def submit_message(self, name: str, message: Tensor, *, done: Done) -> None:
        """Call ``done`` at once."""
        done(None)

    def begin_iteration(self) -> int:
        """Count the iteration and return its number, from 1."""
        self._iterations += 1
        return self._iterations

    def reconfigure(self, settings: Mapping[str, int]) -> None:
        """Do nothing: no transfer is scheduled."""

    def preferred_partition_bytes(self) -> int:
        """Return 0: there is no preference."""
        return 0

    def close(self) -> None:
        """Do nothing: there is no thread to release."""
