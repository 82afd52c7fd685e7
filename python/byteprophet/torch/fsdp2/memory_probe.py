"""Measures the most memory that an iteration of a sharded model takes on this rank.

Three iterations are followed operation by operation, from one forward pass to the next: forward,
loss, backward and update. Tensors that the script holds all the time, such as its data, count as
well, if Python knows them. The highest peak counts, with what kernels and gloo take at most. How
long buffers of transfers live depends on the network. So those of reduce-scatters live as long as
they may in these iterations, and what gloo's threads may let go of late is added.
These iterations take longer than others, so their times say nothing.

Threads: the training thread.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from byteprophet.memory.kernels import KernelMemory
from byteprophet.memory.liveness import Timeline, Use, is_ordinary, tensors_of_python
from byteprophet.memory.peak import peak_of
from byteprophet.memory.sharded_liveness import ShardedLiveness
from byteprophet.torch.fsdp2.model import ShardedModel
from byteprophet.torch.tensors import module_calls

_BEFORE = 3  # iterations: the optimizer makes its state, and ranks learn the order of units
_FOLLOWED = 3
_MARGIN = 0.01
"""How much more is said than was followed: objects around tensors are counted on average only, and
a counting ``malloc`` saw up to 0.2% more in five jobs."""


class MemoryProbe:
    """Follows iterations of ``sharded``'s model, and gives ``done`` the peak in bytes.

    ``done`` also gets the number of the next iteration; they count from 1.
    """

    def __init__(
        self, sharded: ShardedModel, optimizer: Optimizer, done: Callable[[int, int], None]
    ) -> None:
        self._sharded = sharded
        self._model = sharded.model
        self._optimizer = optimizer
        self._done = done
        self._begun = 0
        self._stepped = True
        self._timelines: list[Timeline] = []
        self._late_bytes = 0
        self._liveness = ShardedLiveness(overlaps=True)
        self._end_steps: Any = optimizer.register_step_post_hook(self._after_step)
        self._end_calls = module_calls.listen(self._before_call)

    def _after_step(self, *_: Any) -> None:
        self._stepped = True

    def _before_call(self, module: nn.Module, _inputs: object) -> None:
        if module is not self._model or not (module.training and torch.is_grad_enabled()):
            return
        if not self._stepped:
            return  # another micro-batch of the same iteration
        self._stepped = False
        self._begun += 1
        if self._begun <= _BEFORE:
            return
        if self._begun == _BEFORE + 1:
            self._track_all()
            self._sharded.keep_all(True)
        else:
            self._liveness.__exit__(None, None, None)
            self._timelines.append(self._liveness.timeline)
            self._late_bytes = max(self._late_bytes, self._liveness.late_bytes)
        if len(self._timelines) == _FOLLOWED:
            self._end()
            return
        self._liveness.restart()
        self._liveness.__enter__()

    def _end(self) -> None:
        self._sharded.keep_all(False)
        self._end_steps.remove()
        self._end_calls()
        kernels = KernelMemory()
        for timeline in self._timelines:
            kernels.measure(timeline.kernels)
        peaks = [peak_of(timeline, kernels).total_bytes for timeline in self._timelines]
        peak_bytes = max(*peaks, min(peaks) + self._late_bytes)
        self._done(round((1 + _MARGIN) * peak_bytes), self._begun)

    def _track_all(self) -> None:
        """Count what lives before the first iteration that is followed."""
        liveness, parameters = self._liveness, list(self._model.parameters())
        gc.collect()
        liveness.track(filter(is_ordinary, tensors_of_python()), Use.INPUTS)
        liveness.track(filter(is_ordinary, self._model.buffers()), Use.BUFFERS)
        liveness.track(parameters, Use.PARAMETERS)
        gradients = (each.grad for each in parameters if each.grad is not None)
        liveness.track(gradients, Use.GRADIENTS)
        state = tree_leaves([list(each.values()) for each in self._optimizer.state.values()])
        liveness.track((each for each in state if isinstance(each, Tensor)), Use.OPTIMIZER_STATE)
        liveness.count_sharded(len(parameters))
