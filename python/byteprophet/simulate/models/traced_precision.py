"""The precision in which a module is traced: that of training in bfloat16.

Parameters, buffers and inputs have 16 bits. What a module makes in 32 bits, such as sines of
positions, keeps them until it meets a product with 16 bits. That computes in 16, as under autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

_PRODUCTS: frozenset[Callable[..., Any]] = frozenset(
    [
        *(functional.linear, functional.bilinear, functional.scaled_dot_product_attention),
        functional.multi_head_attention_forward,  # what it calls does not pass by a mode again
        *(functional.conv1d, functional.conv2d, functional.conv3d),
        *(functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d),
        *(torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum),
        *(torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__),
        *(torch.Tensor.mm, torch.Tensor.bmm),
    ]
)


def in_16_bits(
    module: torch.nn.Module, inputs: Sequence[Any]
) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """The module and its inputs with 16 bits."""
    return module.bfloat16(), tuple(tree_map(_narrow, one) for one in inputs)


class ProductsIn16Bits(TorchFunctionMode):
    """Products of inputs with 16 and with 32 bits compute in 16."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call ``func``; its inputs are converted if it is a product of both types."""
        kwargs = kwargs or {}
        if func in _PRODUCTS and _is_mixed([*args, *kwargs.values()]):
            same: dict[int, Any] = {}  # a tensor that is given twice is one tensor afterwards
            args, kwargs = tree_map(
                lambda one: same.setdefault(id(one), _narrow(one)), (args, kwargs)
            )
        return func(*args, **kwargs)


def _is_mixed(values: Sequence[Any]) -> bool:
    given = [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]
    return len({one.dtype for one in given if one.dtype.is_floating_point}) > 1


def _narrow(one: Any) -> Any:
    wide = isinstance(one, torch.Tensor) and one.dtype in (torch.float32, torch.float64)
    return one.bfloat16() if wide else one
