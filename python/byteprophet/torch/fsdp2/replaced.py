"""Parameters of a script's model that FSDP2 has replaced by sharded ones.

The script may still have them in a list that it made before. They get no gradients, so clipping
them, or giving them to an optimizer, would do nothing, silently. So any use of one is an error, and
they keep no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_ALLOWED = {Tensor.__hash__}


class _Replaced(nn.Parameter):
    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Raise ``RuntimeError``, unless the tensor is only a key."""
        if func in _ALLOWED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        raise RuntimeError(
            "byteprophet: this parameter was replaced when sync='fsdp2' sharded its model: take "
            "model.parameters() again, after DistributedOptimizer was made"
        )


def replace(parameter: Tensor) -> None:
    """Note that ``parameter``, a plain one, is none of its model any more."""
    parameter.data = parameter.data.new_empty(0)
    parameter.__class__ = _Replaced


def is_replaced(parameter: object) -> bool:
    """Whether FSDP2 has a parameter in the place of ``parameter``."""
    return isinstance(parameter, _Replaced)
