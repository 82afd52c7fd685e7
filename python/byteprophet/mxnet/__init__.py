"""The module that an MXNet training script imports: ``import byteprophet.mxnet as bps``.

It offers what ``byteps.mxnet`` offers. MXNet's engine starts an operation as soon as its inputs are
ready, so the next forward pass already waits layer by layer. BytePS lacks only the right order. The
``DistributedTrainer`` here sends gradients in the order in which the forward pass needs them, and
updates each parameter as soon as its own gradient has arrived. Parameters equal those of BytePS,
bit for bit.

If ``BYTEPS_SCHEDULER`` is set, importing this module loads the plug-in that schedules transfers.
"""

from __future__ import annotations

from byteprophet import _leaving, _plugin

_loaded = _plugin.load("mxnet")

# These imports come after the plug-in, which must be loaded before BytePS' extension.
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
    """The number of partitions that the policy has scheduled so far; 0 without a policy."""
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
