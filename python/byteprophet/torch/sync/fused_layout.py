"""A small gradient, which may share a buffer with others (``job/shared_buffers.py`` says which)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Small:
    """A gradient that may be fused, as it is sent. It keeps no tensor alive.

    ``size_bytes`` is the parameter's. A gradient that was cast travels in less, and shares the same
    buffer as without.
    """

    shape: torch.Size
    size_bytes: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, gradient: Tensor, size_bytes: int) -> Small:
        """Describe ``gradient``, whose parameter has ``size_bytes``."""
        return cls(gradient.shape, size_bytes, gradient.dtype, gradient.device)

    @property
    def kind(self) -> tuple[torch.dtype, torch.device]:
        """Only gradients of one kind share a buffer."""
        return self.dtype, self.device
