"""A first run of a model on the meta device, which names the module that cannot be traced.

What a model does must not depend on the values of tensors, of which there are none there. And it
must not call ``torch.utils.checkpoint`` itself: ``torch.export`` leaves no trace of it, or takes
what is inside for frozen. What is recomputed can be any function, which need be no module, so that
no node of a strategy stands for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from byteprophet.errors import UserError
from byteprophet.simulate.models.own_code import refusing_failures

_CALLED = ("_checkpoint_without_reentrant_generator", "CheckpointFunction")
"""What ``torch.utils.checkpoint.checkpoint`` calls: a model may have imported it by its name."""
_OF_VALUES = {
    "Tensor.item()": "Tensor.item()",
    "torch.nonzero()": "nonzero(), which a mask as an index calls,",
}
"""What PyTorch says where a branch or a size depends on values of a tensor, and who asks for them.
"""


def run_once(name: str, module: Any, inputs: Sequence[Any]) -> int:
    """Run a model on the meta device.

    Returns:
        The FLOPs that PyTorch counts.

    Raises:
        UserError: it fails, or recomputes a part of itself; the text has the path of the module.
    """
    import torch
    from torch.nn.modules.module import (
        register_module_forward_hook,
        register_module_forward_pre_hook,
    )
    from torch.utils import checkpoint
    from torch.utils.flop_counter import FlopCounterMode

    paths = {id(each): path for path, each in module.named_modules()}
    around: list[str] = []

    def enter(each: Any, _: Any) -> None:
        around.append(paths.get(id(each), ""))

    def leave(*_: Any) -> None:
        around.pop()

    def here() -> str:
        return next((path for path in reversed(around) if path), "forward")

    class Refusing:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.apply()

        @staticmethod
        def apply(*_: Any) -> NoReturn:
            raise UserError(
                f"model {name}: {here()}: torch.utils.checkpoint inside a model is not simulated: "
                "call the function directly, and let the strategy recompute (recompute=full, or "
                "recompute = true at a node)"
            )

    shipped = {each: getattr(checkpoint, each) for each in _CALLED}
    hooks = (register_module_forward_pre_hook(enter), register_module_forward_hook(leave))
    try:
        for each in _CALLED:
            setattr(checkpoint, each, Refusing)
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            try:
                module(*inputs)
            except Exception as error:
                asks = next((who for said, who in _OF_VALUES.items() if said in str(error)), None)
                if asks is not None:
                    raise UserError(
                        f"model {name}: {here()}: {asks} needs values of tensors; tracing has none"
                    ) from None
                with refusing_failures(f"model {name}: {here()}", "cannot be traced in bfloat16"):
                    raise
    finally:
        for each, own in shipped.items():
            setattr(checkpoint, each, own)
        for hook in hooks:
            hook.remove()
    return int(counter.get_total_flops())
