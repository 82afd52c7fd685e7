"""The sequence of allocations of an iteration on a CUDA device, without one.

Threads: everything runs in the calling thread, the backward pass too (``backward.py``).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from byteprophet.memory.cuda.backward import backward
from byteprophet.memory.cuda.gpu import Gpu
from byteprophet.memory.cuda.scratch import is_nhwc, steps
from byteprophet.memory.without_data import require_strided

_aten = torch.ops.aten
_CONVOLUTIONS = (_aten.convolution.default, _aten.convolution_backward.default)
_PRODUCTS = frozenset(
    {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default}
)
_HALF_BYTES = 2
SCRATCH = " (scratch)"
"""Labels of scratch memory end with it."""


class Event(NamedTuple):
    """An allocation of ``size_bytes`` by ``label``, or with 0 bytes the end of one.

    ``handle``: a number that both have in common.
    """

    handle: int
    size_bytes: int
    label: str = ""


class Recorder(TorchDispatchMode):
    """Within this context, records what operations on a CUDA device allocate and free.

    Enter it inside a ``FakeTensorMode`` and ``as_on_cuda``.
    """

    def __init__(self, gpu: Gpu, with_workspaces: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self._gpu = gpu
        self._handles = itertools.count()
        self._known: dict[weakref.ref[UntypedStorage], int] = {}
        self._needs_workspace = {"forward", "backward"} if with_workspaces else set()
        """The phases whose threads have none yet."""
        self.phase = "forward"
        """Labels begin with it: forward, backward or update."""

    def track(self, tensors: Iterable[Tensor], label: str) -> None:
        """Allocate those of ``tensors`` that are not yet."""
        for tensor in tensors:
            self._track(tensor, label)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _CONVOLUTIONS:
            result = _as_cudnn_lays_out(func, args, result)
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if not any(tensor.device.type == "cuda" for tensor in results):
            return result
        label = f"{self.phase}: {func.__name__.partition('.')[0]}"
        if func in _PRODUCTS and self.phase in self._needs_workspace:
            self._needs_workspace.remove(self.phase)
            self._allocate(self._gpu.workspace_bytes, "cuBLAS workspace")
        for step in steps(self._gpu, func, args, results):
            if isinstance(step, Tensor):
                self._track(step, label)
            else:
                scratch = [
                    self._allocate(size_bytes, label + SCRATCH) for size_bytes in step if size_bytes
                ]
                self.events.extend(Event(handle, 0) for handle in reversed(scratch))
        return result

    def _allocate(self, size_bytes: int, label: str) -> int:
        handle = next(self._handles)
        self.events.append(Event(handle, size_bytes, label))
        return handle

    def _track(self, tensor: Tensor, label: str) -> None:
        if tensor.device.type != "cuda":
            return
        require_strided(tensor)
        storage = tensor.untyped_storage()
        reference = weakref.ref(storage, self._ended)
        if storage.nbytes() and reference not in self._known:
            self._known[reference] = self._allocate(storage.nbytes(), label)

    def _ended(self, reference: weakref.ref[UntypedStorage]) -> None:
        handle = self._known.pop(reference, None)
        if handle is not None:
            self.events.append(Event(handle, 0))


class AsOnCuda(TorchFunctionMode):
    """Within this context, calls do what they would do where there is a GPU.

    The backward pass does not need one, and attention takes the fused kernel that CUDA would.
    """

    def __init__(self, gpu: Gpu, recorder: Recorder) -> None:
        super().__init__()
        self._gpu = gpu
        self._recorder = recorder

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.backward and args[0].device.type == "cuda":
            self._recorder.phase = "backward"
            backward(args[0])
            self._recorder.phase = "forward"
            return None
        if func is functional.scaled_dot_product_attention and args[0].device.type == "cuda":
            return self._attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = (each.repeat_interleave(groups, -3) for each in (key, value))
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        operands = query, key, value
        needs_lse = torch.is_grad_enabled() and any(each.requires_grad for each in operands)
        if query.element_size() != _HALF_BYTES or (
            attn_mask is not None and not self._gpu.prefers_cudnn_attention
        ):
            kernel = _aten._scaled_dot_product_efficient_attention
            found = kernel(*operands, attn_mask, needs_lse, dropout_p, is_causal, scale=scale)
        elif self._gpu.prefers_cudnn_attention:
            kernel = _aten._scaled_dot_product_cudnn_attention
            found = kernel(*operands, attn_mask, needs_lse, dropout_p, is_causal, scale=scale)
        else:
            kernel = _aten._scaled_dot_product_flash_attention
            found = kernel(*operands, dropout_p, is_causal, scale=scale)
        return found[0]


def _as_cudnn_lays_out(operator: Any, args: Sequence[Any], result: Any) -> Any:
    """The results of a convolution in the memory format of cuDNN's.

    Where torch was built without cuDNN, it takes another backend for granted, which makes NCHW.
    """
    values, weight = args[:2] if operator is _CONVOLUTIONS[0] else args[1:3]
    if not is_nhwc(values, weight):
        return result
    if isinstance(result, Tensor):
        return result.contiguous(memory_format=torch.channels_last)
    return tuple(
        each.contiguous(memory_format=torch.channels_last)
        if isinstance(each, Tensor) and each.dim() == weight.dim()
        else each
        for each in result
    )
