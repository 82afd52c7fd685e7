"""The interface to whoever decides which backward passes send gradients.

Without rules, a gradient is sent after a fixed number of backward passes, and a parameter without
a gradient takes part with zeros. ``DistributedDataParallel`` decides otherwise (``torch/ddp``): by
the forward pass, and by which parameters the ranks have used. Then ``step()`` sends nothing, and a
parameter without a gradient is not updated, as in plain torch.

Threads: autograd's thread calls everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from torch import Tensor


class BackwardRules(Protocol):
    """Decides for each parameter of one optimizer when its gradient is sent."""

    def before(self, parameter: Tensor) -> None:
        """Called before a backward pass adds to the gradient of ``parameter``.

        Raises ``RuntimeError`` if the gradient of this pass was sent already.
        """

    def completes(self, parameter: Tensor) -> bool:
        """Called after a backward pass has added to the gradient. Whether it is sent now."""
        ...


class SharedRules(BackwardRules, Protocol):
    """Those of an optimizer that may hold parameters whose gradients nobody exchanges."""

    def named(self, parameters: Iterable[Tensor]) -> list[tuple[str, Tensor]]:
        """Those of ``parameters`` whose gradients are exchanged, with the same names on all ranks.

        All ranks begin with the same values of these.
        """
        ...
