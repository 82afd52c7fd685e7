"""Updates some parameters by the optimizer's own code, with the hyperparameters of ``step()``.

An update runs the original class's ``step`` on a *view*: an object of that class that has only some
of the parameters. Its parameters are shadows: detached aliases that carry the averaged gradients.
The state of each shadow is the very dict that the optimizer holds. So the result is identical to
that of the original class, bit for bit, while ``parameter.grad`` stays free for the training
script. Making a view and calling ``step`` costs more than updating a small parameter, so several
small ones are updated at once.

This is correct for optimizers that update every parameter independently. All classes of
``torch.optim`` do, except LBFGS. Other classes may combine parameters, so they count as separable
only if the user says so. A view has a copy of its parameter group, so a class that changes the
group, such as one that counts its steps there, is refused.

Threads: ``FrozenStep.of`` runs in the training thread. ``apply`` runs in the updater thread and
changes the optimizer's state directly. The training thread reads it through the optimizer's
``state``, which waits until no update is outstanding.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from byteprophet.torch.tensors import own_streams
from byteprophet.torch.tensors.dense import flat

Step = Callable[[Optimizer], Any]
Update = tuple[Tensor, Tensor, slice | None]
"""A parameter, its gradient, and the elements of both in memory order (None: all of them)."""
# Classes of torch.optim whose updates combine elements: by statistics of rows and columns, by
# products of matrices, or by indices.
_MIX_ELEMENTS = ("Adafactor", "Muon", "SparseAdam")


def needs_closure(base: type[Optimizer]) -> bool:
    """Whether ``base.step`` cannot be called without a closure (LBFGS)."""
    closure = inspect.signature(base.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def is_of_torch(base: type[Optimizer]) -> bool:
    """Whether ``base`` is one of ``torch.optim``, and not a class below one of these."""
    return base.__module__.startswith("torch.optim.")


def is_separable(optimizer: Optimizer, base: type[Optimizer]) -> bool:
    """Whether ``base`` is known to update each parameter on its own."""
    differentiable = any(group.get("differentiable") for group in optimizer.param_groups)
    return is_of_torch(base) and not differentiable


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
class FrozenStep:
    """What one ``step()`` fixes, except for gradients: class, attributes and hyperparameters.

    ``before`` holds GPU events after the work submitted before ``step()``, which may still read the
    old parameters.
    """

    base: type[Optimizer]
    step: Step
    attributes: dict[str, Any]
    options: list[dict[str, Any]]
    state: dict[Tensor, Any]
    before: own_streams.Events

    @classmethod
    def of(cls, optimizer: Optimizer, base: type[Optimizer]) -> FrozenStep:
        """Freeze the optimizer as it is now. Later changes of its groups have no effect on it."""
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
        # Without the grad-mode wrapper, because ``apply`` disables gradients itself.
        step = inspect.unwrap(base.step)
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        before = own_streams.events(parameters)
        return cls(base, step, attributes, options, optimizer.state, before)

    def apply(self, group: int, updates: Sequence[Update]) -> None:
        """Apply ``updates`` with the options of parameter group ``group``.

        If an update covers a shard, its state covers the same shard, and the class must update
        every element independently. Raises ``RuntimeError`` if the class changes the group.
        """
        state: defaultdict[Tensor, Any] = defaultdict(dict)
        shadows, fresh = [], []
        for parameter, gradient, shard in updates:
            shadow = parameter.detach() if shard is None else flat(parameter)[shard]
            shadow.grad = gradient if shard is None else flat(gradient)[shard]
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
        (after,) = view.param_groups
        del after["params"]
        if after != self.options[group]:  # values that are still the same objects are equal
            self._refuse_changed(after, self.options[group])
        for parameter, shadow in fresh:
            if shadow in state:
                self.state[parameter] = state[shadow]

    def _refuse_changed(self, after: Mapping[str, Any], before: Mapping[str, Any]) -> NoReturn:
        names = {*after, *before}
        changed = min(n for n in names if after.get(n, after) is not before.get(n, before))
        raise RuntimeError(
            f"byteprophet: {self.base.__name__} changes {changed!r} of its parameter groups in "
            "step(), which would be lost where parameters are updated one by one: make the "
            "DistributedOptimizer with separable=False"
        )
