"""Refuses parameters and gradients that are no longer as their optimizer was told."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from torch import Tensor

from byteprophet.torch.sync.fused_layout import Small


@dataclass(frozen=True)
class Compared:
    """A parameter that was compared with all ranks', and what it was."""

    tensor: weakref.ref[Tensor]
    was: Small

    @classmethod
    def of(cls, parameter: Tensor) -> Compared:
        """Describe ``parameter`` as it is now."""
        return cls(weakref.ref(parameter), Small.of(parameter, parameter.nbytes))

    def refuse_changed(self, name: str) -> None:
        """Raise ``RuntimeError`` if the parameter has another type, size or kind of device now."""
        parameter, was = self.tensor(), self.was
        if parameter is None or (
            parameter.numel() == was.shape.numel()
            and parameter.dtype == was.dtype
            and parameter.device.type == was.device.type
        ):
            return
        raise changed(name, was, Small.of(parameter, parameter.nbytes))


def changed(name: str, was: Small, now: Small) -> RuntimeError:
    """The error about the gradient called ``name``, to be raised."""
    return RuntimeError(
        f"byteprophet: the gradient of '{name}' was {_text(was)} and is now {_text(now)}: make a "
        "new DistributedOptimizer after such a change"
    )


def _text(gradient: Small) -> str:
    return f"{gradient.dtype} of shape {tuple(gradient.shape)} on {gradient.device}"
