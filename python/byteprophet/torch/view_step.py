"""Updates of some parameters by the optimizer's own code, on values frozen by ``step()``.

An update is the real class's ``step``, run on a *view*: an object of that class whose only
parameters are shadows (detached aliases of the parameters, carrying the averaged gradients) and
whose state for each is the very dict that the optimizer holds. So the result is the class's own,
bit for bit, while ``parameter.grad`` stays free for the training script. What a view and a call
cost is more than small parameters do, so a few are updated at once.

This is right for optimizers that treat every parameter on its own. All of ``torch.optim`` do,
except LBFGS; other classes may look at all parameters at once, so they count as separable only if
their user says so.

Threads: ``Plan.of`` runs in the main thread, ``apply`` in the updater thread, on the state itself;
the main thread gets it by the optimizer's ``state``, which waits until no update is outstanding.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from byteprophet.torch.dense import flat

Step = Callable[[Optimizer], Any]
Update = tuple[Tensor, Tensor, slice | None]
"""A parameter, its gradient, and which elements of both, in memory order; None: all."""
# Of torch.optim: statistics of rows and columns, products of matrices, indices.
_MIX_ELEMENTS = ("Adafactor", "Muon", "SparseAdam")


def needs_closure(base: type[Optimizer]) -> bool:
    """Whether ``base.step`` cannot be called without a closure (LBFGS)."""
    closure = inspect.signature(base.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def is_separable(optimizer: Optimizer, base: type[Optimizer]) -> bool:
    """Whether ``base`` is known to update each parameter on its own."""
    differentiable = any(group.get("differentiable") for group in optimizer.param_groups)
    return base.__module__.startswith("torch.optim.") and not differentiable


def is_elementwise(optimizer: Optimizer, base: type[Optimizer]) -> bool:
    """Whether ``base`` is known to update each element on its own."""
    return is_separable(optimizer, base) and base.__name__ not in _MIX_ELEMENTS


def unhooked_step(base: type[Optimizer]) -> Step:
    """``base.step`` without the step hooks that torch wraps around it."""
    step: Any = base.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[no-any-return]


def _frozen(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


@dataclass(frozen=True)
class Plan:
    """Everything but the gradient that one ``step()`` fixed: class, attributes, hyperparameters."""

    base: type[Optimizer]
    step: Step
    attributes: dict[str, Any]
    options: list[dict[str, Any]]
    state: dict[Tensor, Any]

    @classmethod
    def of(cls, optimizer: Optimizer, base: type[Optimizer]) -> Plan:
        """The optimizer as it is now; later changes of its groups do not reach the plan."""
        attributes = {
            name: value
            for name, value in vars(optimizer).items()
            if name not in ("step", "state", "param_groups", "_front")
        }
        attributes["_optimizer_step_pre_hooks"] = OrderedDict()
        attributes["_optimizer_step_post_hooks"] = OrderedDict()
        options = [
            {name: _frozen(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        # Below the grad-mode wrapper: the updater thread runs with gradients off throughout.
        step = inspect.unwrap(base.step)
        return cls(base, step, attributes, options, optimizer.state)

    def apply(self, group: int, updates: Sequence[Update]) -> None:
        """Make ``updates`` with the options of parameter group ``group``.

        Of those of a share the state is the share's alone, and the class must treat every element
        on its own.
        """
        state: defaultdict[Tensor, Any] = defaultdict(dict)
        shadows, fresh = [], []
        for parameter, gradient, share in updates:
            shadow = parameter.detach() if share is None else flat(parameter)[share]
            shadow.grad = gradient if share is None else flat(gradient)[share]
            shadows.append(shadow)
            known = self.state.get(parameter)
            if known is None:
                fresh.append((parameter, shadow))
            else:
                state[shadow] = known
        view = object.__new__(self.base)
        view.__dict__.update(self.attributes)
        view.state = state
        view.param_groups = [{**self.options[group], "params": shadows}]
        with torch.no_grad():
            self.step(view)
        for parameter, shadow in fresh:
            if shadow in state:
                self.state[parameter] = state[shadow]
