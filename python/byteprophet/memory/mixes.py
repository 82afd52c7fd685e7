"""The peaks of thousands of mixes of checkpointed and plain regions.

A *region* is a module that is either plain or checkpointed as a whole; a *mix* says which regions
are checkpointed. Each region divides an iteration into *phases*: its forward pass, its backward
pass, and what comes between. A phase has a peak and a change of the live bytes, both relative to
its beginning. They depend on the region and on whether its two neighbours are checkpointed, because
the tensor between two regions is kept if either of them saves it. Further regions change only the
level at which the phase begins.

So eight recorded iterations are enough: the regions' states follow a cyclic sequence of eight in
which every triple occurs once, and each iteration begins at another place of it. The peak of any
mix is then a sum over phases and a maximum.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from byteprophet.errors import UserError
from byteprophet.job.region_memory import STATES, Phases
from byteprophet.memory.kernels import KernelMemory
from byteprophet.memory.liveness import Liveness, Timeline
from byteprophet.memory.peak import trace
from byteprophet.memory.training import Training, modules_at

_STATES = (0, 0, 0, 1, 0, 1, 1, 1)  # every triple of states once, if read as a circle


@dataclass(frozen=True)
class Regions(Phases):
    """What a mix of modules needs. ``paths``: their names, in the order of the forward pass."""

    paths: tuple[str, ...]


def profile_regions(
    training: Training, paths: Sequence[str], kernels: KernelMemory | None = None
) -> Regions:
    """Profile the regions at ``paths`` in eight iterations without data.

    Args:
        training: the iteration.
        paths: names of modules, each of which runs once per forward pass, one after the other in
            this order.
        kernels: what has been measured already, and takes up what is measured now.

    Raises:
        UserError: the regions do not run like that, or the iteration cannot run without data.
    """
    if not paths:
        raise UserError("memory: no region to profile: name at least one module")
    kernels = KernelMemory() if kernels is None else kernels

    def mark(liveness: Liveness, model: nn.Module) -> None:
        marker = Marker(liveness)
        for place, module in enumerate(modules_at(model, paths)):
            marker.watch(place, module, module)

    traced = {}
    for pattern in patterns(len(paths)):
        chosen = [path for path, state in zip(paths, pattern, strict=True) if state]
        traced[pattern] = trace(training, chosen, mark)
    phases = phases_of(traced, kernels)
    return Regions(
        phases.start_bytes, phases.owner, phases.peak_bytes, phases.change_bytes, tuple(paths)
    )


def patterns(count: int) -> list[tuple[int, ...]]:
    """Mixes of ``count`` regions, of which ``phases_of`` needs an iteration each."""
    return list(
        dict.fromkeys(
            tuple(_STATES[(place + turn) % len(_STATES)] for place in range(count))
            for turn in range(len(_STATES))
        )
    )


def phases_of(traced: Mapping[tuple[int, ...], Timeline], kernels: KernelMemory) -> Phases:
    """What any mix needs, from an iteration of each of ``patterns``, marked by a ``Marker``.

    ``kernels`` takes up what is measured now. Raises ``UserError`` if the regions do not run one
    after the other.
    """
    count = len(next(iter(traced)))
    for timeline in traced.values():
        kernels.measure(timeline.kernels)
    phases = {pattern: _phases(timeline, kernels) for pattern, timeline in traced.items()}
    all_owners = [[owner for owner, _, _ in each] for each in phases.values()]
    owners, first = all_owners[0], next(iter(traced.values()))
    forward = list(dict.fromkeys(int(label) for _, label in first.marks))
    if any(each != owners for each in all_owners[1:]) or forward != list(range(count)):
        raise UserError(
            "memory: the regions do not run one after the other in the order in which they are "
            "given: name modules that each run once in a forward pass, in its order"
        )
    table = np.zeros((2, len(owners), STATES), dtype=np.int64)
    for pattern, found in phases.items():
        around = (0, *pattern, 0)
        for phase, (owner, peak, change) in enumerate(found):
            code = 4 * around[owner] + 2 * around[owner + 1] + around[owner + 2]
            table[:, phase, code] = peak, change
    return Phases(sum(first.before[0]), np.array(owners, dtype=np.int64), table[0], table[1])


class Marker:
    """Marks where phases begin, each with the number of its owner.

    ``counts``: whether the forward pass that runs now is part of an iteration.
    """

    def __init__(self, liveness: Liveness, counts: Callable[[], bool] = lambda: True) -> None:
        self._liveness = liveness
        self._counts = counts
        self._backward_of = -1

    def watch(self, place: int, first: nn.Module, last: nn.Module) -> None:
        """Mark the phases of the region at ``place``, which begins and ends with these modules.

        Only the last module of a region that runs as one returns a tensor that can be used.
        """
        before: Callable[..., Any] = functools.partial(self._before_forward, place)
        first.register_forward_pre_hook(before, with_kwargs=True)
        last.register_forward_hook(functools.partial(self._after_forward, place))

    def _before_forward(self, place: int, _module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._counts():
            return
        self._liveness.mark(str(place))
        for tensor in _differentiable((args, kwargs)):
            tensor.register_hook(functools.partial(self._end_backward, place))  # type: ignore[no-untyped-call]

    def _after_forward(self, place: int, _module: nn.Module, _args: Any, result: Any) -> None:
        if not self._counts():
            return
        self._liveness.mark(str(place))
        for tensor in _differentiable(result):
            tensor.register_hook(functools.partial(self._begin_backward, place))  # type: ignore[no-untyped-call]

    def _begin_backward(self, place: int, _gradient: Tensor) -> None:
        if self._backward_of != place:
            self._backward_of = place
            self._liveness.mark(str(place))

    def _end_backward(self, place: int, _gradient: Tensor) -> None:
        if self._backward_of == place:
            self._backward_of = -1
            self._liveness.mark(str(place))


def _differentiable(values: Any) -> list[Tensor]:
    return [
        leaf
        for leaf in tree_leaves(values)
        if isinstance(leaf, Tensor) and leaf.requires_grad and not leaf.is_leaf
    ]


def _phases(timeline: Timeline, kernels: KernelMemory) -> list[tuple[int, int, int]]:
    """Owner, peak and change of each phase."""
    peaks = np.array(timeline.peaks(kernels.extra_bytes))
    levels = np.array([*(sum(live) for live in timeline.before), sum(timeline.after[-1])])
    marks = [(0, 0), *((place, int(label)) for place, label in timeline.marks), (len(peaks), 0)]
    phases = []
    for (begin, owner), (end, _) in itertools.pairwise(marks):
        start = levels[begin]
        peak = max(peaks[begin:end], default=start) - start
        phases.append((owner, int(peak), int(levels[end] - start)))
    return phases
