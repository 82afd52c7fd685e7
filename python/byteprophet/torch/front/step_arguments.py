"""The arguments of a call of an optimizer's ``step()``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.optim import Optimizer

from byteprophet.torch.front.view_step import unhooked_step

Closure = Callable[..., Any]


@dataclass(frozen=True)
class StepArguments:
    """The positional and the named arguments, without the optimizer itself.

    The closure is the argument of that name, or else the first one, if it can be called.
    """

    positional: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)

    @property
    def closure(self) -> Closure | None:
        """The closure, if there is one."""
        first = self.positional[0] if self.positional else None
        closure = self.named.get("closure", first)
        return closure if callable(closure) else None

    @property
    def says_nothing(self) -> bool:
        """Whether the call is the same as ``step()``."""
        given = (*self.positional, *self.named.values())
        are_others = len(self.positional) > 1 or self.named.keys() - {"closure"}
        return not are_others and all(each is None for each in given)

    def with_closure(self, closure: Closure | None) -> StepArguments:
        """The same arguments, with ``closure`` in place of theirs."""
        if "closure" in self.named:
            return StepArguments(self.positional, {**self.named, "closure": closure})
        return StepArguments((closure, *self.positional[1:]), self.named)

    def run(self, base: type[Optimizer], optimizer: Optimizer) -> Any:
        """Call the ``step`` of ``base`` on ``optimizer``, without the hooks that torch adds."""
        step: Any = unhooked_step(base)
        return step(optimizer, *self.positional, **self.named)


NO_ARGUMENTS = StepArguments()
