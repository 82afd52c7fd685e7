"""Casts gradients to the type in which a strategy lets them travel, and averages back.

This is a compressor as ``sender.py`` uses them. Only gradients of float32 are cast. The
synchroniser sums and divides in the smaller type, so an average has its rounding and its range.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from byteprophet.errors import UserError
from byteprophet.job.strategy import FP16, Strategy
from byteprophet.job.strategy_file import Used
from byteprophet.tensor_names import gradient_name
from byteprophet.torch.sync import compressed
from byteprophet.torch.tensors.reduce_dtypes import REDUCE_DTYPES

_OWN_NONE = ("Uncompressed", "NoneCompressor")
_OWN_FP16 = "FP16Compressor"


class Cast:
    """Casts to ``reduce_dtype``, as the strategy in the file ``path`` says."""

    def __init__(self, reduce_dtype: str, path: str) -> None:
        self._reduce_dtype = reduce_dtype
        self._path = path

    def check(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """Raise ``UserError`` if a parameter's gradient cannot be cast."""
        for name, parameter in named:
            if parameter.dtype != torch.float32:
                self._refuse(f"parameter {name!r} is of {parameter.dtype}, not of torch.float32")
            if gradient_name(name) in compressed.names:
                self._refuse(f"the script compresses the gradient of {name!r} itself")

    def compress(self, tensor: Tensor) -> tuple[Tensor, None]:
        """Return ``tensor`` in the smaller type, and no context."""
        return tensor.to(REDUCE_DTYPES[self._reduce_dtype]), None

    def decompress(self, tensor: Tensor, _context: None) -> Tensor:
        """Return ``tensor`` itself: it is cast when it is copied into the gradient."""
        return tensor

    def _refuse(self, why: str) -> None:
        raise UserError(f"{self._path}: gradients are to travel as {self._reduce_dtype}, but {why}")


def compression_of(given: Used | None, own: Any, path: str) -> Any:
    """The compressor under the strategy ``given`` in the file ``path``; ``own``: the script's.

    Raises ``UserError`` if the strategy casts or compresses gradients, and the script compresses
    them otherwise.
    """
    if given is None:
        return own
    if given.strategy.compressors and _name(own) not in _OWN_NONE:
        raise UserError(
            f"{path}: it compresses gradients, and the script compresses them itself, with "
            f"{_name(own)}"
        )
    if given.strategy.local_sgd and _name(own) not in _OWN_NONE:
        raise UserError(
            f"{path}: it averages parameters in place of gradients (local SGD), and the script "
            f"compresses gradients, with {_name(own)}"
        )
    if not given.strategy.reduce_dtype:
        return own
    cast = Cast(given.strategy.reduce_dtype, path)
    name = _name(own)
    if not (name in _OWN_NONE or (name == _OWN_FP16 and given.strategy.reduce_dtype == FP16)):
        cast._refuse(f"the script compresses them itself, with {name}")
    return cast


def fuses(compression: Any) -> bool:
    """Whether gradients may share buffers on their way to servers under ``compression``."""
    return isinstance(compression, Cast) or _name(compression) in _OWN_NONE


def changes_of(given: Used | None, own: Any, parameters: Iterable[Tensor]) -> Strategy:
    """How gradients are changed and delayed, as a strategy without buckets.

    It is recorded of a job.
    """
    if given is not None and given.strategy.reduce_dtype:
        reduce_dtype, fixed = given.strategy.reduce_dtype, ""
    else:
        reduce_dtype, fixed = _recorded(own, parameters)
    return Strategy(
        reduce_dtype=reduce_dtype,
        reduce_fixed=fixed,
        accumulation=1 if given is None else given.strategy.accumulation,
        compressors=() if given is None else given.strategy.compressors,
        staleness=() if given is None else given.strategy.staleness,
        local_sgd=0 if given is None else given.strategy.local_sgd,
    )


def _recorded(own: Any, parameters: Iterable[Tensor]) -> tuple[str, str]:
    """The type in which the script itself sends gradients, and why they cannot have another."""
    others = {str(parameter.dtype) for parameter in parameters} - {"torch.float32"}
    if others:
        return "", f"it has parameters of {', '.join(sorted(others))}"
    if _name(own) == _OWN_FP16:
        return FP16, ""
    if _name(own) in _OWN_NONE:
        return "", ""
    return "", f"the script compresses gradients itself, with {_name(own)}"


def _name(compression: Any) -> str:
    return getattr(compression, "__name__", type(compression).__name__)
