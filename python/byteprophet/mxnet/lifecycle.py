"""Starts and stops BytePS, without leaving transfers in flight, and without hangs after failures.

``_leaving.py`` describes what happens after a failure, and in which order. MXNet's engine may still
have push_pulls to start when the script ends. BytePS waits for them before it shuts down. Here,
this wait has a time limit.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from functools import partial

import mxnet as mx
from byteps.mxnet import ops

from byteprophet import _leaving, _plugin
from byteprophet.errors import warn
from byteprophet.mxnet.recording import process_engine
from byteprophet.mxnet.waiting import wait_for_all
from byteprophet.session import process as observing
from byteprophet.session.monitoring import PROBE_VARIABLE
from byteprophet.session.profiling import PROFILE
from byteprophet.tune.request import VARIABLE as TUNE


def init(lazy: bool = True) -> None:
    """Join the job. With ``lazy``, connect only when the first tensor is sent."""
    ops.init(lazy)
    warn_of_ignored(os.environ)
    _leaving.skip_shutdown(mx.nd.waitall, ops._basics.shutdown)
    _observe()
    atexit.register(observing.stop)
    atexit.register(_finish_at_exit)


def warn_of_ignored(environment: Mapping[str, str]) -> None:
    """Say which variables in ``environment`` ask for what jobs of MXNet cannot do."""
    names = (PROFILE, PROBE_VARIABLE, TUNE)
    ignored = [name for name in names if environment.get(name, "0") not in ("", "0")]
    if ignored:
        warn(f"{', '.join(ignored)}: no effect in jobs of MXNet (docs/mxnet.md, Limits)")


def shutdown() -> None:
    """Finish all outstanding operations, then shut BytePS down."""
    wait_for_all()
    observing.stop()
    ops.shutdown()


def suspend() -> None:
    """Finish all outstanding operations, then leave the job together with all other workers.

    Servers and the scheduler role keep running for workers that call ``resume``.
    """
    wait_for_all()
    observing.stop()
    ops.suspend()


def resume(num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
    """Go on after ``suspend``, as rank ``global_rank`` of ``num_workers``.

    The signature is BytePS' own. Raises ``ValueError`` if ``num_servers`` differs from before.
    """
    ops.resume(num_workers, num_servers, global_rank, context)
    _observe()


def _observe() -> None:
    plugin = _plugin.load("mxnet")
    if plugin is not None and ops.local_rank() == ops.local_size() - 1:  # this one pushes and pulls
        engine = partial(process_engine.start, plugin)
        observing.start(plugin, int(ops.rank()), int(ops.size()), adds_spans=engine)


def _finish_at_exit() -> None:
    """Runs before BytePS' own exit handler. After an uncaught exception, it waits for nothing."""
    if _leaving.has_failed():
        return
    try:
        wait_for_all()
    except Exception as error:  # noqa: BLE001 (an exit handler only reports it, then BytePS shuts down)
        print(error, file=sys.stderr)
