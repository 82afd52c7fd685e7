"""Replaces ``byteps.torch.parallel.DistributedDataParallel`` if ``BYTEPROPHET_SYNC`` is set.

BytePS' class waits for all gradients at the end of backward. In its place, scripts get one whose
gradients a synchroniser of ours exchanges, so that ``step()`` returns at once, and that needs no
servers. It is torch's class, taken over as other ones are (``torch/ddp``), with BytePS' methods and
BytePS' rules (``ddp/byteps_backward.py``). If a model keeps torch's own exchange, torch's rules
hold.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn
from torch.nn import parallel

from byteprophet.errors import UserError
from byteprophet.job.strategy import AUTO, OURS
from byteprophet.runtime_settings import SYNC, RuntimeSettings
from byteprophet.torch.data_parallel import (
    ends_in_one_line,
    exchange_by,
    own_constructor,
    why_not,
)
from byteprophet.torch.ddp import models
from byteprophet.torch.ddp.byteps_backward import BytepsBackward
from byteprophet.torch.optimizer import Uncompressed


class DistributedDataParallel(parallel.DistributedDataParallel):
    """BytePS' DistributedDataParallel, whose gradients our synchronisers exchange.

    Args:
        module: the module to wrap.
        device_ids: None, or a list with the one device on which the module is.
        broadcast_buffers: whether every forward begins with rank 0's buffers.
        compression: a member of ``Compression``.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Any = None,
        broadcast_buffers: bool = True,
        compression: Any = Uncompressed,
    ) -> None:
        with ends_in_one_line():
            sync = _sync()
            if not distributed.is_initialized():
                from byteprophet.torch.sync import among_ranks

                among_ranks.join()
            with own_constructor():
                super().__init__(module, device_ids=device_ids or None)
        # Set now, because the constructor must broadcast buffers in any case.
        self.broadcast_buffers = broadcast_buffers
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        exchange_by(self, sync, compression, BytepsBackward)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Run the module, after rank 0's buffers have come, in evaluation, too."""
        self.require_forward_param_sync = True
        return super().forward(*inputs, **options)  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        """Send the gradients that the last backward pass has not computed.

        All ranks must call this after ``backward()`` if a forward pass may skip layers.
        """
        known = models.known(self)
        if known is not None and isinstance(known.backward, BytepsBackward):
            known.backward.synchronize()


def _sync() -> str:
    """What exchanges gradients. Raises ``UserError`` if it cannot."""
    sync = RuntimeSettings.from_environment().sync
    wrong = why_not(sync)
    if sync == AUTO:
        wrong = (
            "BytePS' DistributedDataParallel has no exchange of its own to compare with; use "
            f"{', '.join(OURS)}"
        )
    if wrong:
        raise UserError(f"{SYNC}={sync}: {wrong}")
    return sync
