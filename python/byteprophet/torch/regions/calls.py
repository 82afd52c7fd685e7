"""Records the calls of modules in one forward pass, with their inputs and outputs.

The hooks are per module, because global hooks would have every compiled function compiled again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn


@dataclass(eq=False)
class ModuleCall:
    """One call. ``calls``: those that its forward made directly, in order."""

    path: str
    module: nn.Module
    inputs: tuple[Any, ...]
    named_inputs: dict[str, Any]
    output: Any = None
    calls: list[ModuleCall] = field(default_factory=list)


class CallRecorder:
    """Records the next forward pass of ``root`` that runs in training mode.

    ``done`` receives the root's call when it has returned. Call ``end`` to record nothing any more.
    """

    def __init__(self, root: nn.Module, done: Callable[[ModuleCall], None]) -> None:
        self._done = done
        self._open: list[ModuleCall] = []
        self._handles = []
        for path, module in root.named_modules():
            self._handles += [
                module.register_forward_pre_hook(self._before(path), with_kwargs=True),
                module.register_forward_hook(self._after, with_kwargs=True),
            ]

    def end(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _before(self, path: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def before(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            if not self._open and path:
                return  # somebody calls a part of the model
            call = ModuleCall(path, module, inputs, named)
            if self._open:
                self._open[-1].calls.append(call)
            self._open.append(call)

        return before

    def _after(
        self, module: nn.Module, _inputs: tuple[Any, ...], _named: dict[str, Any], output: Any
    ) -> None:
        if not self._open or self._open[-1].module is not module:
            return
        call = self._open.pop()
        call.output = output
        if not self._open:
            self.end()
            self._done(call)
