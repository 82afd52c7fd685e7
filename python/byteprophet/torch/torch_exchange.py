"""What optimizers have in common whose gradients torch exchanges: DDP in place, and FSDP2.

Threads: the training thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import distributed
from torch.optim import Optimizer

from byteprophet.errors import UserError


class Calls:
    """What scripts call of a distributed optimizer (``front/optimizer_class.py``).

    There is nothing to wait for: gradients are averages as soon as ``backward()`` returns.
    ``sync``: the optimizer's, for messages.
    """

    def __init__(self, sync: str) -> None:
        self._sync = sync

    def synchronize(self) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Do nothing: no update is outstanding after ``step()``."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Change nothing: ``step()`` uses gradients as they are."""
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Refuse all but one pass with ``UserError``."""
        if passes != 1:
            raise UserError(
                f"backward_passes_per_step={passes}: sync={self._sync!r} sends after every "
                "backward pass; use no_sync() for the others"
            )


def give_calls(optimizer: Optimizer, calls: Calls, passes: int) -> None:
    """Give ``optimizer`` the methods of ``calls``. Raises ``UserError`` if ``passes`` is not 1."""
    calls.set_backward_passes_per_step(passes)
    for name in dir(calls):
        if not name.startswith("_"):
            setattr(optimizer, name, getattr(calls, name))


def unknown_model(sync: str) -> RuntimeError:
    """What is wrong if there are gradients, but no forward pass has shown the model."""
    return RuntimeError(
        f"byteprophet: sync={sync!r}: gradients were computed, but no call of a model with the "
        "optimizer's parameters was seen, so they are this rank's own: give model=, and call the "
        "model itself, not in a function that is compiled"
    )


def check_group(sync: str) -> None:
    """Raise ``ValueError`` if there is no process group."""
    if not distributed.is_initialized():
        raise ValueError(
            f"sync={sync!r}: needs torch.distributed's default group: call init_process_group()"
        )
