"""``ignore_stale_grad``: ranks agree which parameters have a new gradient.

Gluon leaves a parameter as it is if the last backward pass has not computed its gradient. If each
rank decided this alone, a rank that has not used a parameter would keep the old value, and the
others would not. So a parameter that any rank has used is updated on all ranks, by the sum of the
new gradients. One that no rank has used is neither sent nor updated.

Threads: everything here runs in the training thread, which waits for the other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteprophet.mxnet.sums import summed


def used_by_any(parameters: Sequence[Any], name: str) -> list[bool]:
    """Whether any rank has a new gradient of each of ``parameters``. All ranks call this together.

    A gradient that is new on other ranks only is set to zero here, and counts as new. ``name`` is
    that of the trainer.
    """
    fresh = [bool(parameter.list_data()[0]._fresh_grad) for parameter in parameters]
    counts = summed(fresh, f"Fresh.{name}", "which gradients the other ranks have computed")
    used = [bool(count) for count in counts]
    for parameter, here, anywhere in zip(parameters, fresh, used, strict=True):
        if anywhere and not here:
            parameter.list_grad()[0][:] = 0
            parameter.list_data()[0]._fresh_grad = True
    return used
