"""Hooks of scripts on parameters, modules and the wrapper, and weights that are computed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from common import STEPS, Net, script, start, train, wrap
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune


@script
def hooks_on_gradients() -> Iterable[Tensor]:
    model, ddp = start()
    seen: list[Tensor] = []

    def halve(gradient: Tensor) -> Tensor:
        seen.append(gradient.sum())
        return gradient * 0.5

    hooks = [parameter.register_hook(halve) for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(ddp, optimizer)
    for hook in hooks:
        hook.remove()
    model.out.weight.register_hook(halve)
    train(ddp, optimizer, range(STEPS, 2 * STEPS))
    return [*model.parameters(), *seen]


@script
def hooks_on_backward_of_modules() -> Iterable[Tensor]:
    model, ddp = start()
    seen: list[Tensor] = []
    model.middle.register_full_backward_hook(
        lambda _module, into, out: seen.extend((into[0].sum(), out[0].sum()))
    )
    model.more.register_full_backward_pre_hook(lambda _module, out: (out[0] * 0.5,))
    ddp.register_full_backward_hook(lambda _module, _into, out: seen.append(out[0].sum()))
    train(ddp, torch.optim.AdamW(model.parameters(), lr=0.01))
    return [*model.parameters(), *seen]


@script
def hooks_on_forward_read_weights() -> Iterable[Tensor]:
    model, ddp = start()
    seen: list[Tensor] = []

    def note(_module: nn.Module, *_values: Any) -> None:
        # Layers that run later have not waited for their own updates yet.
        seen.extend((model.into.weight.sum().detach(), model.out.weight.sum().detach()))

    model.into.register_forward_pre_hook(note)
    model.middle.register_forward_hook(note)
    ddp.register_forward_pre_hook(note)
    ddp.register_forward_hook(note)
    train(ddp, torch.optim.AdamW(model.parameters(), lr=0.01))
    return [*model.parameters(), *seen]


@script
def weights_are_parametrized_and_pruned() -> Iterable[Tensor]:
    model = Net()
    parametrizations.weight_norm(model.into)
    parametrizations.spectral_norm(model.middle)
    prune.l1_unstructured(model.more, "weight", amount=0.3)
    ddp = wrap(model)
    train(ddp, torch.optim.AdamW(model.parameters(), lr=0.01))
    return [*model.parameters(), *model.buffers()]
