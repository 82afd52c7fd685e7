"""Finds the module whose call begins a model's forward pass, when it is called first."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from byteprophet.torch.tensors import module_calls


def at_first_forward(
    parameters: Iterable[Tensor],
    found: Callable[[nn.Module], None],
    why: str = "the strategy has regions",
    instead: str = "call byteprophet.torch.apply(model, strategy) before training",
) -> None:
    """Call ``found`` once, before the first forward of the module that holds all ``parameters``.

    Raises ``RuntimeError`` in the first forward of a module that holds only some of them. It says
    ``why`` the module is needed, and what to do ``instead``.
    """
    # Others may have the addresses of parameters that are freed before any forward.
    wanted = {id(parameter): weakref.ref(parameter) for parameter in parameters}

    def before(module: nn.Module, _inputs: Any) -> None:
        ours = ((id(each), each) for each in module.parameters() if id(each) in wanted)
        held = {key for key, each in ours if wanted[key]() is each}
        if not held:
            return
        end()
        if held != wanted.keys():
            raise RuntimeError(
                f"byteprophet: {why}, but the script calls parts of the model, such as "
                f"{type(module).__name__}, and no module that holds all parameters of the "
                f"optimizer: {instead}"
            )
        found(module)

    end = module_calls.listen(before)


def at_first_call(model: nn.Module, found: Callable[[nn.Module], None]) -> None:
    """Call ``found`` once, before the first call of a module that is ``model`` or holds it.

    ``found`` gets that module, which is the outermost one whose call the script makes.
    """
    known = weakref.ref(model)

    def before(module: nn.Module, _inputs: Any) -> None:
        model = known()
        if model is None or any(each is model for each in module.modules()):
            end()
            if model is not None:
                found(module)

    end = module_calls.listen(before)
