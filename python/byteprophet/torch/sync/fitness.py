"""Checks whether an exchange can send a parameter."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from byteprophet.torch.sync.exchange import Exchange
from byteprophet.torch.tensors.dense import is_dense


def refuse_unfit(sync: str, exchange: Exchange, named: Iterable[tuple[str, Tensor]]) -> None:
    """Raises ``ValueError`` that names the first parameter that ``exchange`` cannot send.

    ``sync`` is the ``sync`` option of ``DistributedOptimizer``.
    """
    for name, parameter in named:
        if parameter.device.type != exchange.device_type:
            raise ValueError(
                f"sync={sync!r}: parameter '{name}' is on {parameter.device}, the optimizer's "
                f"first one on {exchange.device_type}: all must be on the same kind of device"
            )
        if not exchange.carries(parameter.dtype):
            raise ValueError(
                f"sync={sync!r}: parameter '{name}' is of {parameter.dtype}, which cannot be "
                "exchanged"
            )
        if not is_dense(parameter):
            raise ValueError(f"sync={sync!r}: parameter '{name}' has gaps or overlaps in memory")
