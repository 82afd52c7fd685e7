"""The paced device of a rank of ``hybrid.py``, and the dispatch mode that drives it.

Four ranks share two cores here, so real compute of one would slow down that of the others. A rank
therefore has a device that computes nothing: an operator takes the time that it took in this job
while no other rank computed (``hybrid_operators.py``), and leaves its outputs as they are. The code
around it is PyTorch's own, and all messages travel for real.

The device is asynchronous, as a GPU is: an operator begins when it has been launched and the device
is free. So the host's own work is hidden, unless the device waits for it. A collective or message
begins when the device has done all that was launched before; the host sleeps until then. These are
the rules of CUDA streams. The copies of FSDP2 between parameters and the buffers that travel are
operators, too. The host is late after a sleep, and it launches slowly where cores are shared. This
lateness does not count (``Device.run``), as far as it exceeds the time in which the host was
blocked: by then, a device would have waited, too.

One thread uses a device and a mode: autograd runs the backward pass of CPU tensors in the thread
that calls it. There are no locks.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch.distributed import ProcessGroup
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from byteprophet.paced.pacing import Clock

Described = tuple[Any, ...]
"""A value as nested tuples of texts and numbers; see ``described``."""


class NotDescribed(Exception):
    """A value is neither a tensor nor plain data."""


def described(value: Any) -> Described:
    """Tensors by shape, strides and type; lists and numbers as they are.

    Raises:
        NotDescribed: it is something else.
    """
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise NotDescribed
        return ("tensor", tuple(value.shape), tuple(value.stride()), _name(value.dtype))
    if isinstance(value, (list, tuple)):
        return ("list", *map(described, value))
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return ("torch", _name(value))
    if isinstance(value, torch.device):
        return ("device", str(value))
    if value is None or isinstance(value, (bool, int, float, str)):
        return ("plain", value)
    raise NotDescribed


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


class Operation(NamedTuple):
    """A call of an operator: its name with the overload, and its arguments."""

    name: str
    args: Described
    kwargs: Described

    @staticmethod
    def of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Operation:
        """Describe a call; raises ``NotDescribed``."""
        named = tuple((key, described(value)) for key, value in sorted(kwargs.items()))
        return Operation(str(func), described(args), named)


class Paced(NamedTuple):
    """What is paced of an operation: its time, and its outputs."""

    time_ns: int
    outputs: Described


class Device:
    """The time line of a device. All times are nanoseconds of the monotonic clock.

    ``busy_ns``: how long operators took since the restart.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        """Be free from now on. ``clock``: that of this machine, unless a test has another."""
        self._clock = clock or Clock()
        self.restart()

    def restart(self) -> int:
        """Be free from now on, which is returned."""
        self._seen_ns = self._free_ns = self._clock.monotonic_ns()
        self._seen_cpu_ns = self._clock.thread_time_ns()
        self._late_ns = self.busy_ns = 0
        return self._free_ns

    def run(self, time_ns: int) -> None:
        """Launch an operator."""
        self.busy_ns += time_ns
        self._look()
        self._free_ns = max(self._free_ns, self._seen_ns - self._late_ns) + time_ns

    def finish(self) -> int:
        """Wait until the device is free, and return when it was."""
        self._look()
        self._free_ns = max(self._free_ns, self._seen_ns - self._late_ns)
        slept = False
        while (left_ns := self._free_ns - self._clock.monotonic_ns()) > 0:
            self._clock.sleep(left_ns / 1e9)
            slept = True
        if slept:
            self._seen_ns = self._clock.monotonic_ns()
            self._seen_cpu_ns = self._clock.thread_time_ns()
            self._late_ns = self._seen_ns - self._free_ns
        return self._free_ns

    def _look(self) -> None:
        """Take the host's time since the last look into account."""
        now_ns, cpu_ns = self._clock.monotonic_ns(), self._clock.thread_time_ns()
        worked_ns = min(max(0, cpu_ns - self._seen_cpu_ns), now_ns - self._seen_ns)
        blocked_ns = now_ns - self._seen_ns - worked_ns
        self._late_ns = max(0, self._late_ns + worked_ns - blocked_ns)
        self._seen_ns, self._seen_cpu_ns = now_ns, cpu_ns


@dataclass(frozen=True)
class _Collective:
    """How a call says what it does: places of its tensor and group among the arguments."""

    kind: str
    tensor: int
    group: int
    gathers: bool = False


_CALLS = {
    "c10d::allreduce_": _Collective("all-reduce", 0, 1),
    "c10d::_allgather_base_": _Collective("all-gather", 1, 2, gathers=True),
    "c10d::_reduce_scatter_base_": _Collective("reduce-scatter", 1, 2),
    "c10d::alltoall_base_": _Collective("all-to-all", 1, 2),
    "c10d::send": _Collective("point-to-point", 0, 1),
    "_c10d_functional::all_reduce": _Collective("all-reduce", 0, 2),
    "_c10d_functional::all_reduce_": _Collective("all-reduce", 0, 2),
    "_c10d_functional::all_gather_into_tensor": _Collective("all-gather", 0, 2, gathers=True),
    "_c10d_functional::reduce_scatter_tensor": _Collective("reduce-scatter", 0, 3),
    "_c10d_functional::all_to_all_single": _Collective("all-to-all", 0, 3),
}
_SILENT = frozenset(["c10d::recv_"])
"""Calls whose other side is counted."""
_LOCAL = frozenset(["_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd"])
"""Calls that send nothing."""
_COPIES = frozenset(["fsdp::all_gather_copy_in", "fsdp::split_with_sizes_copy", "fsdp::chunk_cat"])
"""FSDP2's copies between parameters or gradients and what travels."""
_WRAPPERS = (DTensor, AsyncCollectiveTensor)
"""Tensors around others. The second kind waits for a collective when an operator reads it."""
_SPACES = frozenset(["c10d", "_c10d_functional"])
_LEAST_ELEMENTS = 1 << 10


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts collectives, and notes or paces operators.

    Attributes:
        calls: how often each collective was called: its kind, axes, and bytes of the whole tensor.
        operations: the operators that were called, and their outputs; noted while there is no
            device.
        counts: how often each of them was called.
        times_ns: the processor time of each of these calls.
        unknown: collectives that are not known.
    """

    def __init__(
        self,
        axes: Mapping[str, str],
        device: Device | None = None,
        paced: Mapping[Operation, Paced] | None = None,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        """Watch a thread.

        Args:
            axes: the axes of the mesh by the names of their process groups.
            device: paces operators; None: they compute.
            paced: the operators that it paces.
            turn: is held while an operator computes.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._axes = axes
        self._device = device
        self._paced = paced or {}
        self._turn = turn or nullcontext()
        self.calls: Counter[tuple[str, str, int]] = Counter()
        self.operations: dict[Operation, Described] = {}
        self.counts: Counter[Operation] = Counter()
        self.times_ns: defaultdict[Operation, list[int]] = defaultdict(list)
        self.unknown: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run or pace one call. Calls with tensors around others come again, with those inside."""
        kwargs = kwargs or {}
        if any(issubclass(kind, _WRAPPERS) for kind in types):
            return NotImplemented
        if func.namespace in _SPACES:
            self._count(func, args)
            return func(*args, **kwargs)
        copies = func._schema.name in _COPIES
        if not copies and (func.namespace != "aten" or not _computes(func)):
            return func(*args, **kwargs)
        try:
            operation = Operation.of(func, args, kwargs)
        except NotDescribed:
            return func(*args, **kwargs)
        if self._device is None:
            with self._turn:
                began_ns = time.thread_time_ns()
                made = func(*args, **kwargs)
                self.times_ns[operation].append(time.thread_time_ns() - began_ns)
            self._note(operation, made)
            return made
        paced = self._paced.get(operation)
        if paced is None:
            return func(*args, **kwargs)
        self._device.run(paced.time_ns)
        if copies:
            return _buffers(args) if func._schema.returns else None
        if func._schema.is_mutable:
            return args[0] if func._schema.returns else None
        return _made(paced.outputs)

    def _note(self, operation: Operation, made: Any) -> None:
        self.counts[operation] += 1
        if operation not in self.operations:
            try:
                self.operations[operation] = described(made)
            except NotDescribed:
                return

    def _count(self, func: Any, args: Sequence[Any]) -> None:
        """Count a collective; it begins when the device has done what was launched before."""
        name = func._schema.name
        if name in _LOCAL:
            return
        if self._device is not None:
            self._device.finish()
        if name in _SILENT:
            return
        known = _CALLS.get(name)
        if known is None:
            self.unknown[name] += 1
            return
        tensor, group = args[known.tensor], args[known.group]
        tensors = tensor if isinstance(tensor, (list, tuple)) else [tensor]
        ranks = 1
        if not isinstance(group, str):
            unboxed = group if isinstance(group, ProcessGroup) else ProcessGroup.unbox(group)
            group, ranks = unboxed.group_name, unboxed.size()
        elif known.gathers:
            ranks = int(args[1])
        size_bytes = sum(each.numel() * each.element_size() for each in tensors)
        size_bytes *= ranks if known.gathers else 1
        self.calls[known.kind, self._axes.get(group, "?"), size_bytes] += 1


_computing: dict[Any, bool] = {}


def _computes(func: Any) -> bool:
    """Whether a call makes or changes tensors from others: no view, and nothing out of nothing."""
    if func not in _computing:
        schema = func._schema
        aliases = any(one.alias_info is not None for one in schema.returns)
        in_place = schema.is_mutable and schema.name.endswith("_")
        out = any(one.is_out for one in schema.arguments)
        reads = any("Tensor" in str(one.type) for one in schema.arguments)
        gives = all("Tensor" in str(one.type) for one in schema.returns)
        plain = not schema.is_mutable and not aliases
        _computing[func] = reads and gives and not out and (plain or in_place)
    return _computing[func]


def _buffers(args: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``fsdp::all_gather_copy_in`` returns: this rank's part of the buffer, and the buffer."""
    _, buffer, _, count, rank = args
    return buffer.narrow(0, count * rank, count), buffer


def _made(outputs: Described) -> Any:
    """Tensors of these shapes, whatever is in them."""
    if outputs[0] == "tensor":
        _, shape, strides, dtype = outputs
        return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype))
    if outputs[0] == "list":
        return tuple(map(_made, outputs[1:]))
    return outputs[1]


def is_paceable(operation: Operation, outputs: Described) -> bool:
    """Whether nothing but time depends on what an operator computes.

    Whole numbers, truth values and the optimizer's counters decide what is done. They are computed.
    """
    tensors = [*_tensors(operation.args), *_tensors(outputs)]
    most = max((prod(shape) for _, shape, _, _ in tensors), default=0)
    floats = all(dtype.startswith(("float", "bfloat")) for *_, dtype in _tensors(outputs))
    return floats and most >= _LEAST_ELEMENTS


def _tensors(value: Described) -> list[Described]:
    """All tensors in a description."""
    if value[0] == "tensor":
        return [value]
    return [one for part in value[1:] for one in _tensors(part)] if value[0] == "list" else []
