"""The module that a PyTorch training script imports: ``import byteprophet.torch as bps``.

Offers what ``byteps.torch`` offers, with a ``DistributedOptimizer`` whose ``step()`` returns at
once. Every module's forward waits for its own parameters, so the order of transfers matters.
Results equal those of a job that waits in ``step()``, bit for bit, because any access to a
parameter or gradient in flight waits for it (``tensors/pending.py``). Only two kinds of tensors do
not wait: those on the same memory that were made before ``step()`` (a view, ``p.data``,
``p.detach()``), and those of the optimizer's state that a script keeps from an earlier step. Before
reading one, call ``optimizer.finish()``, or set ``BYTEPROPHET_OVERLAP=0`` for the job.
``BYTEPROPHET_DEBUG=1`` reports lines that wait, and lines that use tensors of the first kind
(``tensors/reads.py``).

Calls raise ``PeerLost`` if they need a rank that is gone, and ``TimedOut`` if they wait for other
ranks for longer than ``BYTEPROPHET_TIMEOUT_S``. Both are subclasses of ``RuntimeError``.

In a job without servers, the same calls work among the ranks of torch.distributed
(``sync/basics.py``).

If ``BYTEPS_SCHEDULER`` is set, importing this module loads the plug-in that schedules transfers.
"""

from __future__ import annotations

from byteprophet import _plugin

_loaded = _plugin.load()

# These imports come after the plug-in, which must be loaded before BytePS' extension.
from byteps.torch import Compression  # noqa: E402

from byteprophet.errors import PeerLost, TimedOut  # noqa: E402
from byteprophet.torch.collectives import (  # noqa: E402
    broadcast_optimizer_state,
    broadcast_parameters,
    push_pull,
    push_pull_async,
)
from byteprophet.torch.data_parallel import DistributedDataParallel  # noqa: E402
from byteprophet.torch.lifecycle import (  # noqa: E402
    init,
    resume,
    shutdown,
    start_recording,
    stop_recording,
    suspend,
)
from byteprophet.torch.optimizer import DistributedOptimizer, flush  # noqa: E402
from byteprophet.torch.record import record  # noqa: E402
from byteprophet.torch.regions.install import apply  # noqa: E402
from byteprophet.torch.sync.basics import (  # noqa: E402
    local_rank,
    local_size,
    poll,
    push_pull_async_inplace,
    push_pull_inplace,
    rank,
    size,
    synchronize,
)
from byteprophet.torch.sync.compressed import declare  # noqa: E402

byteps_push_pull = push_pull_async_inplace  # upstream's name for it in this module


def scheduled_partitions() -> int:
    """The number of partitions that the policy has scheduled so far; 0 without a policy."""
    return 0 if _loaded is None else _loaded.scheduled_partitions()


def partition_bytes() -> int:
    """The current partition size in bytes.

    It is 0 without a policy, and on local ranks other than the one that pushes.
    """
    return 0 if _loaded is None else _loaded.partition_bytes()


__all__ = [
    "Compression",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "PeerLost",
    "TimedOut",
    "apply",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "declare",
    "flush",
    "init",
    "local_rank",
    "local_size",
    "partition_bytes",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "record",
    "resume",
    "scheduled_partitions",
    "shutdown",
    "size",
    "start_recording",
    "stop_recording",
    "suspend",
    "synchronize",
]
