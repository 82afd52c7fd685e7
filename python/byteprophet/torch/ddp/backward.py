"""When the gradients of one ``DistributedDataParallel`` are complete, as its reducer decides it.

A forward pass outside of ``no_sync()`` lets the next backward pass send gradients. Each gradient is
sent when backward has added to it. The pass ends in one of three ways:

* By default, every parameter must get a gradient. If one gets none, the next forward raises an
  error.
* With ``find_unused_parameters``, the ranks tell each other at the end of backward which parameters
  they have used since the last such end. A parameter that only other ranks have used takes part
  with its old gradient or zeros. One that nobody has used keeps what it has.
* With ``static_graph``, the first pass shows how often backward adds to each gradient and which
  parameters are used. Its gradients are sent at its end. Later passes do the same.

Threads: forward runs in the training thread, all else in autograd's, while that thread waits.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from byteprophet.torch.front.backward_rules import BackwardRules
from byteprophet.torch.tensors.compiling import stays_eager


class Submit(Protocol):
    """Sends the gradients of a model that backward has not sent."""

    def __call__(self, rules: ModelRules, missing: Iterable[Tensor], /) -> None:
        """Send those of the parameters ``missing``, and start incomplete buckets."""
        ...


class ModelRules(BackwardRules, Protocol):
    """When the gradients of one model are complete."""

    parameters: Mapping[str, Tensor]

    @property
    def expecting(self) -> bool:
        """Whether the next backward pass sends gradients, without a further forward pass."""
        ...

    def check_finished(self) -> None:
        """Called before a forward pass. Raises ``RuntimeError`` if gradients are missing."""
        ...

    def expect(self, outputs: Iterable[Tensor]) -> None:
        """Called after a forward pass whose backward pass sends gradients."""
        ...


class Backward:
    """The state of one model.

    ``parameters``: those that its reducer exchanges, by name. ``finds_unused`` and ``is_static``
    are the options of DistributedDataParallel. ``group``: the ranks. ``submit``: see ``Submit``.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        group: Any,
        submit: Submit,
        *,
        finds_unused: bool,
        is_static: bool,
    ) -> None:
        self.parameters = parameters
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._group = group
        self._submit = submit
        self._is_static = is_static
        self._finds_unused = finds_unused and not is_static
        self.expecting = False
        self._added: Counter[int] = Counter()  # additions of this pass, by id of the parameter
        self._used: set[int] = set()  # since the last end of a pass that sent gradients
        self._adds: Counter[int] | None = None  # static: additions in every pass, once known
        self._unused: frozenset[int] = frozenset()  # used by no rank, as far as is known
        self._left = 0  # gradients that this pass has yet to complete
        self._ending = -1  # the backward pass at whose end ``_end`` is called

    @property
    def begun(self) -> bool:
        """Whether a backward pass has sent some gradients and not the others."""
        return self.expecting and bool(self._added)

    def check_finished(self) -> None:
        """Raises ``RuntimeError``, as DistributedDataParallel does, if gradients are missing."""
        if not self.begun:
            return
        missing = [name for key, name in self._names.items() if key not in self._added]
        raise RuntimeError(
            f"byteprophet: the last backward pass computed no gradient of '{missing[0]}' (of "
            f"{len(missing)} parameters in total): every parameter must be used to compute the "
            "loss, or DistributedDataParallel needs find_unused_parameters=True"
        )

    def expect(self, outputs: Iterable[Tensor]) -> None:
        """Send the gradients of the next backward pass, which begins at ``outputs``."""
        self.expecting = True
        self._added.clear()
        self._left = len(self._names if self._adds is None else self._adds)
        self._ending = -1
        if self._finds_unused or (self._is_static and self._adds is None):
            ending = weakref.WeakMethod(self._end_later)

            def begins(_gradients: Any) -> None:
                end_later = ending()
                if end_later is not None and _computes_all_gradients():
                    end_later()

            # A nested backward pass (checkpointing) may be the first to add to a gradient. Its end
            # is not the end of the whole.
            for output in outputs:
                if output.grad_fn is not None:
                    output.grad_fn.register_prehook(begins)

    def before(self, parameter: Tensor) -> None:
        """See ``BackwardRules``."""
        key = id(parameter)
        if self.expecting and self._added[key] >= self._needed(key):
            what = (
                "more often than in the first iteration, which static_graph=True forbids"
                if self._is_static
                else "twice in one backward pass; DistributedDataParallel needs static_graph=True"
            )
            raise RuntimeError(
                f"byteprophet: the gradient of '{self._names[key]}' was computed {what}"
            )

    def completes(self, parameter: Tensor) -> bool:
        """See ``BackwardRules``."""
        key = id(parameter)
        if self._finds_unused and parameter.grad is None:
            # An undefined gradient: whether another rank has used the parameter shows at the end.
            self._end_later()
            return False
        self._used.add(key)
        if not self.expecting:
            return False
        self._added[key] += 1
        if self._is_static and self._adds is None:
            self._end_later()
            return False
        is_complete = self._added[key] == self._needed(key)
        self._left -= is_complete
        if self._finds_unused or self._left == 0:
            self._end_later()
        return is_complete

    def _needed(self, key: int) -> float:
        """How often backward adds to a gradient; infinite in the first pass of a static graph."""
        if not self._is_static:
            return 1
        return float("inf") if self._adds is None else self._adds[key]

    def _end_later(self) -> None:
        """Have ``_end`` called at the end of this backward pass."""
        task = torch._C._current_graph_task_id()
        if self.expecting and self._ending < 0:
            self._ending = task
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._end)

    @stays_eager  # called by a backward pass within a compiled function
    def _end(self) -> None:
        missing = [p for p in self.parameters.values() if id(p) not in self._added]
        if self._is_static and self._adds is None:
            self._unused = self._used_by_nobody()
            self._adds = Counter(self._added)
            missing = list(self.parameters.values())
        elif self._finds_unused:
            self._unused = self._used_by_nobody()
        missing = [p for p in missing if id(p) not in self._unused]
        self.expecting = False
        self._added = Counter()
        self._used.clear()
        self._submit(self, missing)

    def _used_by_nobody(self) -> frozenset[int]:
        """The parameters that no rank has used, by ``id``. All ranks call this together."""
        device = next(iter(self.parameters.values())).device
        used = [int(key in self._used) for key in self._names]
        uses = torch.tensor(used, dtype=torch.int32, device=device)
        distributed.all_reduce(uses, group=self._group)
        return frozenset(
            key for key, use in zip(self._names, uses.tolist(), strict=True) if not use
        )


def _computes_all_gradients() -> bool:
    """Whether this backward pass adds to the gradients of all that it reaches.

    ``torch.autograd.grad`` adds to none. One with ``inputs`` is noticed when it adds to the first.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    return bool(engine.is_checkpoint_valid())


def as_its_reducer(
    wrapped: DistributedDataParallel, parameters: Mapping[str, Tensor], submit: Submit
) -> Backward:
    """The rules by which the reducer of ``wrapped`` would send the gradients of ``parameters``."""
    return Backward(
        parameters,
        wrapped.process_group,
        submit,
        finds_unused=wrapped.find_unused_parameters,
        is_static=wrapped.static_graph,
    )
