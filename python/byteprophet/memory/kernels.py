"""The memory that kernels use while they run, measured once per distinct call.

Some kernels use scratch memory that no tensor shows, for example oneDNN's convolutions, above all
in bfloat16. Each distinct call (operator, shapes, strides, types, other arguments) is run once with
tensors of zeros under the profiler, which sees every allocation. The results of a call count among
its memory. Operators that work element by element on one type need none besides their results, so
they are not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import TreeSpec, tree_unflatten

_SMALL_BYTES = 1 << 14  # calls whose tensors are all smaller are not run
_MARK = "byteprophet.kernel."
_HALF_BYTES = 2


@dataclass(frozen=True)
class Layout:
    """A tensor without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def zeros(self, statistics: torch.dtype | None = None) -> Tensor:
        """A tensor of this layout. Expanded dimensions share memory, as in the original.

        ``statistics``: the type of vectors of a 16-bit type, instead of their own. Without data,
        normalisations under autocast seem to return their means in the type of their input; in
        reality they return float32, and expect it in the backward pass.
        """
        dtype = self.dtype
        if statistics is not None and len(self.shape) == 1 and dtype.itemsize == _HALF_BYTES:
            dtype = statistics
        elements = 1 + sum(
            (size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True)
        )
        memory = torch.zeros(elements if all(self.shape) else 0, dtype=dtype)
        return memory.as_strided(self.shape, self.stride)


@dataclass(frozen=True)
class Kernel:
    """A distinct call of an operator."""

    operator: Any
    leaves: tuple[Any, ...]
    tree: TreeSpec


def kernel_of(
    operator: Any, leaves: Sequence[Any], tree: TreeSpec, made_bytes: int
) -> Kernel | None:
    """The kernel of a call, or None if it takes no memory besides its results.

    Args:
        operator: what is called.
        leaves: all arguments, as they are in ``tree``: a pair of positional ones and a mapping.
        tree: their structure.
        made_bytes: bytes of those results that are new storages.
    """
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    largest = max((tensor.numel() * tensor.element_size() for tensor in tensors), default=0)
    if max(largest, made_bytes) < _SMALL_BYTES or not tensors:
        return None
    writes = operator._schema.is_mutable
    one_type = len({tensor.dtype for tensor in tensors}) == 1
    if not made_bytes and not writes:  # a view
        return None
    if one_type and torch.Tag.pointwise in operator.tags:
        return None
    kept = [
        Layout(tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype)
        if isinstance(leaf, Tensor)
        else leaf
        for leaf in leaves
    ]
    return Kernel(operator, tuple(kept), tree)


class KernelMemory:
    """What has been measured so far; shared between predictions of one process."""

    def __init__(self) -> None:
        self.extra_bytes: dict[Kernel, int] = {}
        """The most that each kernel takes while it runs, results among it."""
        self.refused: set[Kernel] = set()
        """Those that could not be run with zeros. Their scratch memory is not known."""

    def measure(self, kernels: Iterable[Kernel | None]) -> None:
        """Measure those of ``kernels`` that are not known.

        Takes about as long as the kernels themselves.
        """
        missing = [
            kernel
            for kernel in dict.fromkeys(kernels)
            if kernel is not None and kernel not in self.extra_bytes
        ]
        if not missing:
            return
        with (
            torch.random.fork_rng(devices=[]),
            torch.no_grad(),
            profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
        ):
            ran = [_run(kernel, f"{_MARK}{place}") for place, kernel in enumerate(missing)]
        found = _peaks(profiler)
        for place, kernel in enumerate(missing):
            self.extra_bytes[kernel] = found[f"{_MARK}{place}"] if ran[place] else 0
            if not ran[place]:
                self.refused.add(kernel)


def _run(kernel: Kernel, mark: str) -> bool:
    """Run a kernel on zeros under a mark. Returns False if it refuses them."""
    for statistics in (None, torch.float32):
        leaves = [
            leaf.zeros(statistics) if isinstance(leaf, Layout) else leaf for leaf in kernel.leaves
        ]
        args, kwargs = tree_unflatten(leaves, kernel.tree)
        try:
            with record_function(mark):
                kernel.operator(*args, **kwargs)
        except (RuntimeError, ValueError, TypeError, IndexError):
            continue
        return True
    return False


def _peaks(profiler: profile) -> dict[str, int]:
    """The highest sum of allocations within the last span of each mark."""
    assert profiler.profiler is not None
    results: Any = profiler.profiler.kineto_results
    events = results.events()
    changes = sorted(
        (event.start_ns(), place, event.nbytes())
        for place, event in enumerate(events)
        if event.name() == "[memory]"
    )
    spans = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns(), event.name())
        for event in events
        if event.name().startswith(_MARK)
    )
    peaks, place = {}, 0
    for begin_ns, end_ns, name in spans:
        while place < len(changes) and changes[place][0] < begin_ns:
            place += 1
        live = most = 0
        while place < len(changes) and changes[place][0] <= end_ns:
            live += changes[place][2]
            most = max(most, live)
            place += 1
        peaks[name] = most
    return peaks
