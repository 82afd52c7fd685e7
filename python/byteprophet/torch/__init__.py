"""What a PyTorch training script imports: ``import byteprophet.torch as bps``.

Offers what ``byteps.torch`` offers, with a ``DistributedOptimizer`` whose ``step()`` returns at
once: every module's forward waits for its own parameters, so the order of the transfers matters.
Results are those of the job that waits in ``step()``, bit for bit: whoever touches a parameter or
gradient under way waits for it (``pending.py``). Only another tensor on the same memory that was
made before ``step()`` (a view, ``p.data``, ``p.detach()``) cannot know: call ``optimizer.finish()``
before it is read, or set ``BYTEPROPHET_OVERLAP=0`` for the job. ``BYTEPROPHET_DEBUG=1`` names the
lines that do either (``reads.py``).

With ``BYTEPS_SCHEDULER`` set, the plug-in that schedules the transfers is loaded here.
"""

from __future__ import annotations

from byteprophet import _plugin

_loaded = _plugin.load()

# After the plug-in, which must come before BytePS' extension.
from byteps.torch import (  # noqa: E402
    Compression,
    declare,
    local_rank,
    local_size,
    poll,
    rank,
    size,
    synchronize,
)
from byteps.torch.ops import push_pull_async_inplace, push_pull_inplace  # noqa: E402

from byteprophet.torch.collectives import (  # noqa: E402
    broadcast_optimizer_state,
    broadcast_parameters,
    push_pull,
    push_pull_async,
)
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

byteps_push_pull = push_pull_async_inplace  # upstream's name for it in this module


def scheduled_partitions() -> int:
    """Partitions that went through the scheduling policy so far; 0 without one."""
    return 0 if _loaded is None else _loaded.scheduled_partitions()


def partition_bytes() -> int:
    """The partition size now; 0 without a policy, and where another local rank has it."""
    return 0 if _loaded is None else _loaded.partition_bytes()


__all__ = [
    "Compression",
    "DistributedOptimizer",
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
