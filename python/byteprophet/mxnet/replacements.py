"""Replaces BytePS' functions with ours, for scripts that import ``byteps.mxnet``."""

from __future__ import annotations

from types import ModuleType

from byteprophet.mxnet import lifecycle
from byteprophet.mxnet.optimizer import DistributedOptimizer
from byteprophet.mxnet.trainer import DistributedTrainer


def install(module: ModuleType) -> None:
    """Replace the classes and functions of ``byteps.mxnet`` by ours."""
    for replacement in (
        DistributedOptimizer,
        DistributedTrainer,
        lifecycle.init,
        lifecycle.resume,
        lifecycle.shutdown,
        lifecycle.suspend,
    ):
        setattr(module, replacement.__name__, replacement)
