"""Starts and stops BytePS, without leaving transfers in flight, and without hangs after failures.

In a job without servers (``sync/basics.py``), joins and leaves the ranks of torch.distributed.

``_leaving.py`` describes what happens after a failure, and in which order.
"""

from __future__ import annotations

import atexit

from byteps.torch import ops

from byteprophet import _leaving, _plugin
from byteprophet.job.strategy_file import is_of_ddp
from byteprophet.observe.messages import loaded_source
from byteprophet.observe.span_log import process_spans
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.session import process as observing
from byteprophet.torch import probe
from byteprophet.torch.front import stopping
from byteprophet.torch.live_fronts import live_fronts
from byteprophet.torch.recording.layer_spans import process_layers
from byteprophet.torch.recording.stopwatch import process_stopwatch
from byteprophet.torch.sync import basics
from byteprophet.torch.sync.alone import Alone

_joined = False  # BytePS


def init(lazy: bool = True) -> None:
    """Join the job. With ``lazy``, connect to servers only when the first tensor is sent."""
    if basics.without_servers():
        from byteprophet.torch.sync import among_ranks

        among_ranks.join()
        if not is_of_ddp(RuntimeSettings.from_environment().strategy):  # it records its own spans
            observe_ranks(basics.rank(), basics.size())
        return
    global _joined
    ops.init(lazy)
    _joined = True
    _leaving.skip_shutdown(ops._basics.shutdown)
    _observe()
    atexit.register(observing.stop)
    if probe.wanted():
        probe.run()


def init_once() -> None:
    """``init``, unless this process has joined BytePS already."""
    if not _joined:
        init()


def observe_ranks(rank: int, size: int) -> None:
    """Record spans, if requested, in a job without servers, which never calls ``init``."""
    if not observing.joined():
        observing.start_spans(rank, size)
        atexit.register(observing.stop)
        process_layers.restart(process_spans.iteration)


def shutdown() -> None:
    """Finish all outstanding operations, then leave the job."""
    stopping.stop_all()
    _stop_observing()
    if basics.without_servers():
        from byteprophet.torch.sync import among_ranks

        among_ranks.leave()
        return
    ops.shutdown()


def suspend() -> None:
    """Finish all outstanding operations, then leave the job together with all other workers.

    Servers and the scheduler role keep running for workers that call ``resume``. Raises
    ``RuntimeError`` if the job has no servers, or a mesh beside them, or if averages are delayed.
    """
    _refuse_without_servers("suspend")
    _refuse_with_mesh("suspend")
    _refuse_with_delays("suspend")
    stopping.stop_all()
    _stop_observing()
    ops.suspend()


def resume(num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
    """Go on after ``suspend``, as rank ``global_rank`` of ``num_workers``.

    The signature is BytePS' own. Every worker that stays in the job calls this, with the same
    numbers; new workers call ``init`` instead. Raises ``ValueError`` if ``num_servers`` differs
    from before. Also raises it if ``num_workers`` is larger than one and ``DistributedOptimizer``
    was called in a job of one worker. Raises ``RuntimeError`` if the job has no servers, or a mesh
    beside them, or if averages are delayed.
    """
    _refuse_without_servers("resume")
    _refuse_with_mesh("resume")
    _refuse_with_delays("resume")
    alone = any(isinstance(front.synchroniser, Alone) for front in live_fronts())
    if num_workers > 1 and alone:
        raise ValueError(
            f"resume(num_workers={num_workers}): DistributedOptimizer was called in a job of one "
            "worker, where nothing is sent; call it after resume()"
        )
    ops.resume(num_workers, num_servers, global_rank, context)
    _observe()
    if probe.wanted():
        probe.run()
    for front in live_fronts():
        front.agree_again()


def start_recording() -> None:
    """Record transfers and spans (docs/formats.md), beginning with the next iteration.

    Call this between iterations. ``BYTEPROPHET_RECORD`` is not needed. Raises ``RuntimeError`` if
    the job has no run directory. For training without BytePS, use ``record``.
    """
    observing.start_recording()
    process_layers.refresh()


def stop_recording() -> None:
    """Stop recording after the current iteration, until ``start_recording`` is called again."""
    observing.stop_recording()


def _refuse_without_servers(call: str) -> None:
    if basics.without_servers():
        raise RuntimeError(
            f"byteprophet: {call}(): this job has no servers, and its number of ranks cannot "
            "change: start it with servers"
        )


def _refuse_with_mesh(call: str) -> None:
    # Imported here, because it imports all of the mesh, which most jobs with servers do not use.
    from byteprophet.torch.sync.routing_synchroniser import RoutingSynchroniser

    for front in live_fronts():
        if isinstance(front.synchroniser, RoutingSynchroniser):
            raise RuntimeError(f"byteprophet: {front.synchroniser.why_not_resumed(call)}")


def _refuse_with_delays(call: str) -> None:
    if any(front.delays for front in live_fronts()):
        raise RuntimeError(
            f"byteprophet: {call}(): averages are delayed, and a rank that joins would have none "
            "of those that the others use next: use a strategy without staleness"
        )


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
