"""Lets tensors without data be on a CUDA device, also where torch was built without CUDA.

Dispatching an operation on a device asks its *device guard* for the current device. A build of
torch with CUDA has one, and ``FakeTensorMode`` replaces it by one that does nothing where there is
no GPU. A build without CUDA has none. There, ``allow_cuda`` makes torch install that same guard,
which has no state: ``torch._C._ensureCUDADeviceGuardSet`` does so if the present guard counts no
devices, so one that answers 0 to everything stands in for the time of the call.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from byteprophet.errors import UserError

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"  # an array by c10::DeviceType
_CUDA = 1  # c10::DeviceType::CUDA
_METHODS = 64  # more than the virtual methods of a device guard


@contextlib.contextmanager
def autocast_on_cuda() -> Iterator[None]:
    """Within this context, ``torch.autocast("cuda")`` works also where there is no GPU.

    That of a module under ``torch.utils.checkpoint``, too, which is entered in the backward pass.
    """
    with (
        replaced(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        replaced(torch.cuda, "is_bf16_supported", lambda: True),
    ):
        yield


@contextlib.contextmanager
def replaced(module: Any, name: str, function: Callable[[], Any]) -> Iterator[None]:
    """Within this context, a function of a module of torch is another one."""
    before = getattr(module, name)
    setattr(module, name, function)
    try:
        yield
    finally:
        setattr(module, name, before)


def allow_cuda() -> None:
    """Let this process make tensors without data on CUDA devices. Changes nothing where it can.

    Raises ``UserError`` if this torch does not allow it.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        guards = (ctypes.c_void_p * (_CUDA + 1)).in_dll(library, _REGISTRY)
    except (OSError, ValueError) as error:
        raise UserError(
            f"memory: this torch ({torch.__version__}) cannot have CUDA tensors without data "
            f"({error}): use a torch for Linux"
        ) from error
    if guards[_CUDA] is not None:
        return
    no_devices = ctypes.CFUNCTYPE(ctypes.c_long)(lambda: 0)
    address = ctypes.cast(no_devices, ctypes.c_void_p).value
    methods = (ctypes.c_void_p * _METHODS)(*[address] * _METHODS)
    guard = ctypes.c_void_p(ctypes.addressof(methods))
    guards[_CUDA] = ctypes.addressof(guard)
    torch._C._ensureCUDADeviceGuardSet()
    if guards[_CUDA] == ctypes.addressof(guard):
        guards[_CUDA] = None
        raise UserError(
            f"memory: this torch ({torch.__version__}) cannot have CUDA tensors without data: "
            "use a torch that was built with CUDA"
        )
