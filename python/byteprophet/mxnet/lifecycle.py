"""Starting and stopping BytePS: nothing of ours left on the way, and no hang after a failure.

What happens after a failure, and in which order: ``_leaving.py``. MXNet's engine may still have
push_pulls to start when the script ends. BytePS waits for them before it shuts down; here that wait
has a time limit.
"""

from __future__ import annotations

import atexit
import sys
from functools import partial

import mxnet as mx
from byteps.mxnet import ops

from byteprophet import _leaving, _plugin
from byteprophet.mxnet.recording import process_engine
from byteprophet.mxnet.waiting import wait_for_all
from byteprophet.observe import process as observing


def init(lazy: bool = True) -> None:
    """Join the job. ``lazy``: connect when the first tensor is sent."""
    ops.init(lazy)
    _leaving.skip_shutdown(mx.nd.waitall, ops._basics.shutdown)
    _observe()
    atexit.register(observing.stop)
    atexit.register(_finish_at_exit)


def shutdown() -> None:
    """Finish what is under way, then shut BytePS down."""
    wait_for_all()
    observing.stop()
    ops.shutdown()


def suspend() -> None:
    """Finish what is under way, then leave the job together with all other workers.

    Servers and the scheduler role stay for those that ``resume``.
    """
    wait_for_all()
    observing.stop()
    ops.suspend()


def resume(num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
    """Go on after ``suspend``, as rank ``global_rank`` of ``num_workers`` (BytePS' own signature).

    ``num_servers`` cannot change: ``ValueError``.
    """
    ops.resume(num_workers, num_servers, global_rank, context)
    _observe()


def _observe() -> None:
    plugin = _plugin.load("mxnet")
    if plugin is not None and ops.local_rank() == ops.local_size() - 1:  # which talks to servers
        engine = partial(process_engine.start, plugin)
        observing.start(plugin, int(ops.rank()), int(ops.size()), adds_spans=engine)


def _finish_at_exit() -> None:
    """Runs before BytePS' own exit handler. After an uncaught exception nobody is waited for."""
    if _leaving.has_failed():
        return
    try:
        wait_for_all()
    except Exception as error:  # noqa: BLE001 (an exit handler: said, and BytePS shut down)
        print(error, file=sys.stderr)
