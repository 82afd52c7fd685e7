"""Starting and stopping BytePS: nothing of ours left on the way, and no hang after a failure.

BytePS shuts down at exit, and waits there for all other workers. If this one failed they never
come: they wait for its gradients. So after an uncaught exception BytePS is not shut down, and the
process ends with status 1 once the exit handlers have run.

Exit handlers run in reverse order: that of ``init`` before BytePS', the one registered here after.
"""

from __future__ import annotations

import atexit
import os
import sys

from byteps.torch import ops

from byteprophet import _plugin
from byteprophet.observe import process as observing
from byteprophet.torch import flush_points
from byteprophet.torch.synchroniser import Alone


def init(lazy: bool = True) -> None:
    """Join the job. ``lazy``: connect when the first tensor is sent."""
    ops.init(lazy)
    atexit.register(_skip_shutdown_after_failure)
    _observe()
    atexit.register(observing.stop)


def shutdown() -> None:
    """Finish what is under way, then shut BytePS down."""
    flush_points.stop_all()
    observing.stop()
    ops.shutdown()


def suspend() -> None:
    """Finish what is under way, then leave the job together with all other workers.

    Servers and the scheduler role stay for those that ``resume``.
    """
    flush_points.stop_all()
    observing.stop()
    ops.suspend()


def resume(num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
    """Go on after ``suspend``, as rank ``global_rank`` of ``num_workers`` (BytePS' own signature).

    Every worker of the job that goes on calls it, or ``init`` if it is new, and gives the same
    numbers. ``num_servers`` cannot change: ``ValueError``.
    """
    alone = any(isinstance(front.synchroniser, Alone) for front in flush_points.live_fronts())
    if num_workers > 1 and alone:
        raise ValueError(
            f"resume(num_workers={num_workers}): DistributedOptimizer was called in a job of one "
            "worker, where nothing is sent; call it after resume()"
        )
    ops.resume(num_workers, num_servers, global_rank, context)
    _observe()
    for front in flush_points.live_fronts():
        front.agree_again()


def _observe() -> None:
    plugin = _plugin.load()
    if plugin is not None and ops.local_rank() == ops.local_size() - 1:  # which talks to servers
        observing.start(plugin, int(ops.rank()), int(ops.size()))


def _skip_shutdown_after_failure() -> None:
    if flush_points.has_failed():
        atexit.unregister(ops.shutdown)


def _leave_after_failure() -> None:
    if flush_points.has_failed():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


atexit.register(_leave_after_failure)
