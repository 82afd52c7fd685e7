"""Records the calls of modules in one forward pass, with their inputs, outputs and their readers.

The hooks are per module, because global hooks would have every compiled function compiled again.
Readers of outputs are seen by a mode of torch, which hears of every function and attribute that the
pass uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from byteprophet.torch.tensors.nested import fields_of, is_record, tensors_in


@dataclass(eq=False)
class ModuleCall:
    """One call. ``calls``: those that its forward made directly, in order.

    ``took_ns``: with what recording adds, so it only compares calls of one recorded pass.

    ``versions``: of the tensors among its inputs, when it began.

    ``readers``: of the output, once this call had returned it. Each is the calls that were open,
    from the root's on. A call that returns the output as a part of its own is a reader, too.

    ``has_gradients``: they were on.
    """

    path: str
    module: nn.Module
    inputs: tuple[Any, ...]
    named_inputs: dict[str, Any]
    versions: tuple[int, ...] = ()
    output: Any = None
    took_ns: int = 0
    calls: list[ModuleCall] = field(default_factory=list)
    readers: set[tuple[ModuleCall, ...]] = field(default_factory=set)
    has_gradients: bool = True


def same(one: object, other: object) -> bool:
    """Whether two arguments of modules are the same: the same tensors, and equal values."""
    leaves, tree = _pytree.tree_flatten(one)
    other_leaves, other_tree = _pytree.tree_flatten(other)
    return tree == other_tree and all(map(_same_leaf, leaves, other_leaves))


def versions_of(values: object) -> tuple[int, ...]:
    """How often each of the tensors in ``values`` was changed in place."""
    with torch._C.DisableTorchFunction():  # a recorder would take this for a use
        return tuple(0 if each.is_inference() else each._version for each in tensors_in(values))


def further_versions(call: ModuleCall) -> tuple[int, ...]:
    """Of the tensors among the inputs of ``call`` behind the first one, when it began."""
    return call.versions[len(versions_of(call.inputs[:1])) :]


def _same_leaf(one: object, other: object) -> bool:
    if one is other:
        return True
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return False
    if type(one) is not type(other):
        return False
    if is_record(one):
        return same(fields_of(one), fields_of(other))
    return bool(one == other)


class CallRecorder:
    """Records the next forward pass of ``root`` that runs in training mode.

    ``done`` receives the root's call when it has returned. Call ``end`` to record nothing any more.
    """

    def __init__(self, root: nn.Module, done: Callable[[ModuleCall], None]) -> None:
        self._done = done
        self._open: list[ModuleCall] = []
        self._began_ns: list[int] = []  # of the open calls
        self._made: dict[int, ModuleCall] = {}  # outputs, by their identity: calls keep them alive
        self._mode: _Functions | None = None
        self._handles = [root.register_forward_hook(self._leave, always_call=True, prepend=True)]
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
            if not path:
                if not (module.training and torch.is_grad_enabled()):
                    return  # an evaluation
                self._open.clear()  # of a pass that ended by an exception
                self._began_ns.clear()
            elif not self._open:
                return  # somebody calls a part of the model
            versions = versions_of((inputs, named))
            call = ModuleCall(path, module, inputs, named, versions)
            call.has_gradients = torch.is_grad_enabled()
            if self._open:
                self._open[-1].calls.append(call)
            else:
                self._mode = _Functions(self._read)
                self._mode.__enter__()  # type: ignore[no-untyped-call]
            self._open.append(call)
            self._began_ns.append(time.monotonic_ns())

        return before

    def _after(
        self, module: nn.Module, _inputs: tuple[Any, ...], _named: dict[str, Any], output: Any
    ) -> None:
        if not self._open or self._open[-1].module is not module:
            return
        self._read(output)
        call = self._open.pop()
        call.output = output
        call.took_ns = time.monotonic_ns() - self._began_ns.pop()
        if isinstance(output, Tensor):
            self._made[id(output)] = call
        if not self._open:
            self.end()
            self._made.clear()
            self._done(call)

    def _read(self, values: object) -> None:
        """The innermost open call uses ``values``, or returns them."""
        for tensor in tensors_in(values):
            if id(tensor) in self._made:
                self._made[id(tensor)].readers.add(tuple(self._open))

    def _leave(self, *_: Any) -> None:
        """The root's forward has ended, perhaps by an exception."""
        if self._mode is not None:
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._mode = None


class _Functions(TorchFunctionMode):
    """Tells ``read`` the arguments of every function of torch."""

    def __init__(self, read: Callable[[object], None]) -> None:
        super().__init__()
        self._read = read

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """See torch.overrides."""
        named = kwargs or {}
        self._read((args, named))
        return func(*args, **named)
