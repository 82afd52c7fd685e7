"""Updates one parameter at a time.

MXNet's optimizers update up to 45 parameters in one operation, which starts when the last of their
gradients has arrived. With one operation per parameter, each update starts when its own gradient
has arrived. The operations are the same, so the results are the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxnet.optimizer import Updater


class OneByOne(Updater):  # type: ignore[misc]
    """MXNet's updater, which here updates each parameter separately if it is called with lists."""

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        """Update ``weight``, number ``index``, by ``grad``. All three may also be lists."""
        if not isinstance(index, list | tuple):
            super().__call__(index, grad, weight)
            return
        for each in singly(index, grad, weight):
            super().__call__(*each)


def singly(*lists: Sequence[Any]) -> list[tuple[list[Any], ...]]:
    """For each index, return a tuple of lists that contain only that element of ``lists``."""
    return [tuple([value] for value in values) for values in zip(*lists, strict=True)]
