"""What an MXNet training script imports: ``import byteprophet.mxnet as bps``.

Offers what ``byteps.mxnet`` offers. MXNet's engine starts every operation when what it reads is
there, so the next forward pass waits layer by layer by itself; what BytePS lacks is the order. The
``DistributedTrainer`` here sends gradients by the order in which the forward pass needs them, and
updates each parameter as soon as its own gradient is there. Parameters are BytePS' bit for bit.

With ``BYTEPS_SCHEDULER`` set, the plug-in that schedules the transfers is loaded here.
"""

from __future__ import annotations

from byteprophet import _leaving, _plugin

_loaded = _plugin.load("mxnet")

# After the plug-in, which must come before BytePS' extension.
from byteps.mxnet import Compression, broadcast_parameters  # noqa: E402
from byteps.mxnet.ops import (  # noqa: E402
    byteps_declare_tensor,
    byteps_push_pull,
    local_rank,
    local_size,
    rank,
    size,
)

from byteprophet.mxnet.lifecycle import init, resume, shutdown, suspend  # noqa: E402
from byteprophet.mxnet.optimizer import DistributedOptimizer  # noqa: E402
from byteprophet.mxnet.trainer import DistributedTrainer  # noqa: E402

_leaving.leave_at_exit()  # after MXNet has registered its own handlers, which wait for its engine


def scheduled_partitions() -> int:
    """Partitions that went through the scheduling policy so far; 0 without one."""
    return 0 if _loaded is None else _loaded.scheduled_partitions()


__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "broadcast_parameters",
    "byteps_declare_tensor",
    "byteps_push_pull",
    "init",
    "local_rank",
    "local_size",
    "rank",
    "resume",
    "scheduled_partitions",
    "shutdown",
    "size",
    "suspend",
]
