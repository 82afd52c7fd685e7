"""Lets torch's tests of DistributedDataParallel that ask for GPUs run without (ddp_torch_tests.py).

Most of them test nothing that needs a GPU: they only put models and inputs there. ``never_skip``
takes away what skips them, and ``stay_on_cpus`` leaves every tensor on the CPU. A test that looks
at devices or streams then fails, with byteprophet or without.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_MAKE = ("arange", "empty", "full", "ones", "rand", "randint", "randn", "tensor", "zeros")
_DEVICES = 8


def never_skip() -> None:
    """Let all tests run that are imported from now on."""
    from torch.testing._internal import common_distributed

    def never_skipped(*_arguments: Any, **_options: Any) -> Callable[[Any], Any]:
        return lambda test: test

    tests: Any = common_distributed
    tests.skip_if_lt_x_gpu = never_skipped
    tests.skip_if_no_gpu = lambda test: test


def stay_on_cpus() -> None:
    """Leave all tensors of this process on the CPU from now on.

    Call this after the tests are imported: torch compiles functions then, and finds only its own.
    """
    library: Any = torch
    for name in _MAKE:
        setattr(library, name, _made_on_cpu(getattr(library, name)))
    for kind in (torch.Tensor, nn.Module):
        changed: Any = kind
        changed.cuda = lambda self, *_arguments, **_options: self
        changed.to = _moved_to_cpu(changed.to)
    library.cuda.device_count = lambda: _DEVICES
    library.cuda.current_device = lambda: 0
    library.cuda.device = lambda *_arguments: nullcontext()
    library.cuda.set_device = library.cuda.synchronize = lambda *_arguments, **_options: None
    model: Any = DistributedDataParallel
    model.__init__ = _without_devices(model.__init__)


def _made_on_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*arguments: Any, **options: Any) -> Any:
        options.pop("device", None)
        return make(*arguments, **options)

    return made


def _moved_to_cpu(move: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(move)
    def moved(self: Any, *arguments: Any, **options: Any) -> Any:
        options.pop("device", None)
        kept = [each for each in arguments if not _is_device(each)]
        return move(self, *kept, **options) if kept or options else self

    return moved


def _is_device(value: Any) -> bool:
    return type(value) is int or isinstance(value, str | torch.device)


def _without_devices(construct: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(construct)
    def constructed(self: Any, module: Any, *_devices: Any, **options: Any) -> None:
        for name in ("device_ids", "output_device"):
            options.pop(name, None)
        construct(self, module, **options)

    return constructed
