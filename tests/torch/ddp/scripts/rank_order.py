"""Gives DistributedDataParallel the arithmetic of our exchange, so that jobs can be compared.

A sum of more than two addends depends on their order. DistributedDataParallel divides each rank's
gradients, and gloo adds them up in the order of a ring. Our exchange adds them up in the order of
ranks and multiplies the sum once (docs/allreduce.md). Both are right to the last bits, but training
may make anything of a last bit: Adam turns a gradient that is zero but for rounding into an update
as large as the learning rate. So parameters cannot tell a fault from rounding.

``install`` therefore gives each DistributedDataParallel of this process a communication hook that
averages as ours does. It is written from the description and uses nothing of byteprophet. A job
with our exchange must end with the bits of this job. The hook compares every average with that of
DistributedDataParallel itself, of the same gradients, and raises ``ArithmeticError`` if they are
further apart than rounding explains.

Ours gives the exchange back if a script asks for ``join()``, for a hook of its own or one that runs
after a gradient is computed, or wraps a model twice. So does this: from there on,
DistributedDataParallel is as torch has it.

Threads: the hook runs in autograd's thread, while the training thread waits in backward.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel


@dataclass
class Compared:
    """``averages``: how many elements were compared. ``apart``: the largest of ``apart_of``."""

    averages: int = 0
    apart: float = 0.0


compared = Compared()
"""Since the running script began."""
_changed: weakref.WeakSet[Any] = weakref.WeakSet()
"""The models whose averages are those of ours."""
_awaiting: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those whose forward pass has run, and whose backward pass has not begun."""


def average_of(parts: Sequence[Tensor]) -> Tensor:
    """The average of the ranks' ``parts``, as ours computes it.

    Halves are added up as float32 and rounded once.
    """
    dtype = parts[0].dtype
    wide = torch.float32 if dtype.itemsize < 4 else dtype
    total = parts[0].to(wide)
    for part in parts[1:]:
        total = total + part.to(wide)
    return (total * (1 / len(parts))).to(dtype)


def rounding_bound(parts: Sequence[Tensor]) -> Tensor:
    """How far apart the two averages of ``parts`` may be, per element, as float64.

    An operation rounds its result by a factor of 1 + d, where |d| is at most u, half the epsilon of
    its type. n operations in a row are off by at most n u / (1 - n u) times the sum of the addends'
    magnitudes (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, 3.1 and 4.2).

    An element of P parts passes P - 1 additions and one multiplication by 1/P, which is rounded
    itself. Halves are computed as float32. Ours then rounds the last result to the parts' type, and
    DistributedDataParallel each of its P results. What is below the normal numbers of a type is
    rounded to multiples of its least number.
    """
    size, about = len(parts), torch.finfo(parts[0].dtype)
    is_half = parts[0].dtype.itemsize < 4
    computed = _gamma(size + 1, torch.finfo(torch.float32 if is_half else parts[0].dtype).eps / 2)
    own, ours = (
        (1 + computed) * (1 + _gamma(rounded, about.eps / 2)) - 1 if is_half else computed
        for rounded in (size, 1)
    )
    magnitude = sum(part.double().abs() for part in parts) / size
    least = about.tiny * about.eps
    return (own + ours) * magnitude + (size + 1) * least


def _gamma(operations: int, unit: float) -> float:
    return operations * unit / (1 - operations * unit)


def apart_of(one: Tensor, other: Tensor, parts: Sequence[Tensor]) -> float:
    """How far apart two averages of ``parts`` are, in units of what rounding explains."""
    apart = (one.double() - other.double()).abs() / rounding_bound(parts)
    return float(apart.max()) if apart.numel() else 0.0


def install() -> None:
    """Give every DistributedDataParallel of this process, from now on, the arithmetic of ours."""
    kind: Any = DistributedDataParallel
    kind.__init__ = _constructed(kind.__init__)
    kind._pre_forward = _looking(kind._pre_forward)
    kind._post_forward = _noted(kind._post_forward)
    for name in ("join_hook", "register_comm_hook"):
        setattr(kind, name, _after_giving_back(getattr(kind, name)))


def _constructed(plain: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(plain)
    def constructed(self: Any, *arguments: Any, **options: Any) -> None:
        plain(self, *arguments, **options)
        ranks = distributed.get_process_group_ranks(self.process_group)
        if sorted(ranks) != [*range(distributed.get_world_size())]:
            return
        gc.collect()  # wrappers that only circles of references keep alive
        mine = {id(parameter) for parameter in self.parameters()}
        wrapped = {id(parameter) for other in _changed for parameter in other.parameters()}
        if mine.isdisjoint(wrapped):
            distributed._register_comm_hook(self.reducer, weakref.ref(self), _average)
            _changed.add(self)
        else:
            _give_back()

    return constructed


def _looking(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def looking(self: Any, *inputs: Any, **options: Any) -> Any:
        hooks = (getattr(each, "_post_accumulate_grad_hooks", None) for each in self.parameters())
        if self in _changed and any(hooks):
            _give_back()
        return plain(self, *inputs, **options)

    return looking


def _noted(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def noted(self: Any, output: Any) -> Any:
        if torch.is_grad_enabled() and self.require_backward_grad_sync:
            _awaiting.add(self)
        return plain(self, output)

    return noted


def _after_giving_back(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def giving_back(self: Any, *arguments: Any, **options: Any) -> Any:
        _give_back()
        return plain(self, *arguments, **options)

    return giving_back


def _give_back() -> None:
    """Let all models exchange gradients by themselves, with new reducers, which have no hook.

    A reducer that begins anew has its first buckets again, as one that ours has kept idle. Buckets
    decide in which order gloo adds up. It must know of a backward pass that is still to come.
    """
    for wrapped in list(_changed):
        wrapped.reducer._remove_autograd_hooks()
        parameters, sparse = wrapped._build_params_for_reducer()
        names = wrapped._build_debug_param_to_name_mapping(parameters)
        wrapped._ddp_init_helper(parameters, sparse, names, wrapped.static_graph)
        if wrapped.static_graph:
            wrapped.static_graph = False
            wrapped._set_static_graph()
        elif wrapped in _awaiting and not wrapped.find_unused_parameters:
            wrapped.reducer.prepare_for_backward([])
    _changed.clear()


def _average(model: weakref.ref[Any], bucket: Any) -> Any:
    """The hook: replaces a bucket's gradients by their averages."""
    _awaiting.discard(model())
    mine = bucket.buffer()
    size = distributed.get_world_size()
    average = mine * (1 / size)  # as DistributedDataParallel's reducer has it
    distributed.all_reduce(average)
    if mine.is_floating_point() and not mine.is_sparse:
        parts = _gathered(mine)
        in_order = average_of(parts)
        apart = apart_of(in_order, average, parts)
        if not apart <= 1:  # neither if it is no number
            raise ArithmeticError(
                f"averages are {apart:.3g} times as far apart as rounding explains"
            )
        compared.averages += mine.numel()
        compared.apart = max(compared.apart, apart)
        average = in_order
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(average)
    return done


def _gathered(mine: Tensor) -> list[Tensor]:
    """All ranks' values of a flat tensor, in the order of ranks."""
    raw = mine.contiguous().view(torch.uint8)
    parts = [torch.empty_like(raw) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, raw)
    return [part.view(mine.dtype) for part in parts]
