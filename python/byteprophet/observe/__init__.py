"""Watches a worker process from inside, and hands the plug-in's transfers to consumers.

    observer.py         the thread, and the interfaces of its source and its consumers
    recording.py        the consumers that save transfers, messages and spans
    messages.py         ps-lite's messages
    span_log.py span_recording.py   spans: what the process did, and when
    strategy_recording.py           the buckets that a job without servers uses
    fused_recording.py order_recording.py   shared buffers and the common order of one with servers
    pace.py             when iterations began, and what was waited for
    live.py live_traffic.py         a status file for viewers, while somebody watches
    windows.py          the iterations that are recorded
    server.py           a server's own recording

``byteprophet.session`` creates and ends the observers and consumers of a process.
"""

from byteprophet.observe.observer import Consumer, Job, Observer, TransferSource

__all__ = ["Consumer", "Job", "Observer", "TransferSource"]
