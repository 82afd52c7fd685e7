"""Updates of one parameter at a time.

MXNet's optimizers update up to 45 parameters in one operation, which starts when the last of their
gradients is there. One operation per parameter starts when its own is. The same operations with one
parameter in them are used, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxnet.optimizer import Updater


class OneByOne(Updater):  # type: ignore[misc]
    """MXNet's updater of an optimizer; called with lists, it treats each parameter by itself."""

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        """Update ``weight`` number ``index`` by ``grad``, or each of three lists."""
        if not isinstance(index, list | tuple):
            super().__call__(index, grad, weight)
            return
        for each in singly(index, grad, weight):
            super().__call__(*each)


def singly(*lists: Sequence[Any]) -> list[tuple[list[Any], ...]]:
    """Per element of ``lists``, lists with that element only."""
    return [tuple([value] for value in values) for values in zip(*lists, strict=True)]
