"""What one training iteration does, in reality and without data."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from byteprophet.errors import UserError

LossOf = Callable[[nn.Module, Any], Tensor]
"""Runs the forward pass of the model that it is given on one micro-batch, and returns the loss."""


@dataclass(frozen=True)
class Training:
    """A training iteration: forward and backward per micro-batch, one update, cleared gradients.

    Args:
        model: its parameters are on the CPU, or, for an iteration on CUDA, on the meta device.
        micro_batches: the inputs of ``loss_of``, one for each forward pass of the iteration. The
            script holds all of them during the iteration.
        loss_of: see ``LossOf``. It must use the model that it is given, not one that it knows.
        optimizer: makes the optimizer of some parameters, such as ``torch.optim.Adam``.
        autocast: the type of ``torch.autocast`` around ``loss_of``; None: no autocast.
        device: where the iteration runs without data.
    """

    model: nn.Module
    micro_batches: Sequence[Any]
    loss_of: LossOf
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    autocast: torch.dtype | None = None
    device: Literal["cpu", "cuda"] = "cpu"

    def loss(self, batch: Any) -> Tensor:
        """The loss of one micro-batch, by a forward pass."""
        if self.autocast is None:
            return self.loss_of(self.model, batch)
        with torch.autocast(self.device, dtype=self.autocast):
            return self.loss_of(self.model, batch)

    def run(self, optimizer: Optimizer) -> None:
        """Run one iteration. ``optimizer`` has been made of the model's parameters."""
        for batch in self.micro_batches:
            loss = self.loss(batch)
            if len(self.micro_batches) > 1:
                loss = loss / len(self.micro_batches)
            loss.backward()  # type: ignore[no-untyped-call]
            del loss
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def without_data(self, mode: FakeTensorMode) -> Training:
        """The same iteration with a copy of the model and inputs that have no data.

        Raises ``UserError`` if the model is not on the CPU or cannot be copied.
        """
        allowed = ("cpu",) if self.device == "cpu" else ("cpu", "meta")
        known: dict[int, Any] = {}
        for name, tensor in itertools.chain(
            self.model.named_parameters(remove_duplicate=True),
            self.model.named_buffers(remove_duplicate=True),
        ):
            if tensor.device.type not in allowed:
                raise UserError(
                    f"memory: '{name}' is on {tensor.device}; only models on the CPU can be "
                    "predicted: move the model to the CPU"
                )
            known[id(tensor)] = self._without_data(tensor, mode)
        try:
            model = copy.deepcopy(self.model, known)
        except Exception as error:
            raise UserError(
                f"memory: the model cannot be copied ({type(error).__name__}: {error}): "
                "give one that copy.deepcopy() takes"
            ) from error
        bare = functools.partial(self._without_data, mode=mode)
        batches = tree_map_only(Tensor, bare, list(self.micro_batches))
        return replace(self, model=model, micro_batches=batches)

    def _without_data(self, tensor: Tensor, mode: FakeTensorMode) -> Tensor:
        if self.device == "cpu":
            return mode.from_tensor(tensor)
        with mode:
            bare = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device
            )
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(bare, tensor.requires_grad)
        return bare


def modules_at(model: nn.Module, paths: Iterable[str]) -> list[nn.Module]:
    """The modules with these names in ``model.named_modules()``.

    Raises ``UserError`` for a name that there is not, and for a module inside another one.
    """
    modules = dict(model.named_modules())
    chosen = list(paths)
    for path in chosen:
        if path not in modules or not path:
            raise UserError(
                f"memory: the model has no module '{path}': use names of model.named_modules()"
            )
        for other in chosen:
            if other != path and path.startswith(f"{other}."):
                raise UserError(
                    f"memory: '{path}' is inside '{other}', which is also chosen: choose one of "
                    "them"
                )
    return [modules[path] for path in chosen]


@contextlib.contextmanager
def checkpointed(model: nn.Module, paths: Iterable[str]) -> Iterator[None]:
    """Within this context, the modules at ``paths`` are recomputed in the backward pass.

    They run under ``torch.utils.checkpoint`` (non-reentrant). Their hooks run once, in the forward
    pass. Raises what ``modules_at`` raises.
    """
    modules = modules_at(model, dict.fromkeys(paths))
    before = [module.__dict__.get("forward") for module in modules]
    for module in modules:
        module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
    try:
        yield
    finally:
        for module, forward in zip(modules, before, strict=True):
            del module.forward
            if forward is not None:
                module.forward = forward
