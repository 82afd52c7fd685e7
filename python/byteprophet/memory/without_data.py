"""Runs iterations on tensors without data, and refuses what cannot run or be followed so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from byteprophet.errors import UserError


@contextlib.contextmanager
def without_data() -> Iterator[FakeTensorMode]:
    """Within this context, tensors have no data. Raises ``UserError`` if an operation needs it."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            yield mode
    except (
        DataDependentOutputException,
        DynamicOutputShapeException,
        UnsupportedOperatorException,
    ) as error:
        raise UserError(
            f"memory: the iteration depends on the values of tensors and cannot run without data: "
            f"{error}"
        ) from error


def require_strided(tensor: Tensor) -> None:
    """Raise ``UserError`` for a tensor whose memory is not one storage."""
    if tensor.layout is not torch.strided:
        raise UserError(
            f"memory: a tensor has layout {tensor.layout}, whose memory cannot be followed: "
            "use dense tensors (for example nn.Embedding(sparse=False))"
        )
