"""Starting and stopping BytePS: nothing of ours left on the way, and no hang after a failure.

What happens after a failure, and in which order: ``_leaving.py``.
"""

from __future__ import annotations

import atexit

from byteps.torch import ops

from byteprophet import _leaving, _plugin
from byteprophet.observe import process as observing
from byteprophet.observe.messages import loaded_source
from byteprophet.observe.span_log import process_spans
from byteprophet.torch import flush_points, probe
from byteprophet.torch.layer_spans import process_layers
from byteprophet.torch.stopwatch import process_stopwatch
from byteprophet.torch.synchroniser import Alone


def init(lazy: bool = True) -> None:
    """Join the job. ``lazy``: connect when the first tensor is sent."""
    ops.init(lazy)
    _leaving.skip_shutdown(ops.shutdown)
    _observe()
    atexit.register(observing.stop)
    if probe.wanted():
        probe.run()


def shutdown() -> None:
    """Finish what is under way, then shut BytePS down."""
    flush_points.stop_all()
    _stop_observing()
    ops.shutdown()


def suspend() -> None:
    """Finish what is under way, then leave the job together with all other workers.

    Servers and the scheduler role stay for those that ``resume``.
    """
    flush_points.stop_all()
    _stop_observing()
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


def start_recording() -> None:
    """Record transfers and spans (docs/formats.md) from the iteration that begins next.

    To be called between iterations, with ``BYTEPROPHET_RECORD`` or without, in a job that has a
    run directory; ``RuntimeError`` in another. Without BytePS there is ``record``.
    """
    observing.start_recording()
    process_layers.refresh()


def stop_recording() -> None:
    """The iteration under way is the last that is recorded, until ``start_recording``."""
    observing.stop_recording()


def _observe() -> None:
    plugin = _plugin.load()
    rank, size = int(ops.rank()), int(ops.size())
    talks_to_servers = ops.local_rank() == ops.local_size() - 1
    if plugin is not None and talks_to_servers:
        observing.start(plugin, rank, size, process_stopwatch)
    else:
        observing.start_spans(rank, size, loaded_source() if talks_to_servers else None)
    process_layers.restart(process_spans.iteration)


def _stop_observing() -> None:
    observing.stop()
    process_layers.refresh()


_leaving.leave_at_exit()
