"""What transfers wait for in front of links that others keep busy.

Two transfers share a link's rate. But what one of them sends also stands behind what the link's
queue holds of the other (``network.queue_ns``). A collective waits so once in each pass over its
ranks, because a rank sends on what it has received; a message waits once. Collectives of buckets do
not: they are long, and what they send next is in the queue already.

Which transfers meet is known only from a simulation. So a job is simulated without this first, and
then again with what its times say.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from byteprophet.graph.model import Connection
from byteprophet.replay import Replayed
from byteprophet.simulate.execute.job_graph import JobGraph


def queued_ns(job: JobGraph, replayed: Replayed, queue_ns: int) -> dict[int, int]:
    """How long transfers wait in queues, by their operations; those that wait for nothing left out.

    Args:
        job: the job without queues.
        replayed: its times.
        queue_ns: how long they wait each time.
    """
    if not job.queued:
        return {}
    graph, start_ns, end_ns = job.graph, replayed.start_ns, replayed.end_ns
    by_link: dict[int, list[int]] = defaultdict(list)
    for operation in np.flatnonzero(graph.size_bytes > 0).tolist():
        device = graph.devices[graph.device[operation]]
        assert isinstance(device, Connection)
        for link in device.route:
            by_link[link].append(operation)
    met: set[int] = set()
    for operations in by_link.values():
        flows = np.array(operations)
        flows = flows[np.argsort(start_ns[flows], kind="stable")]
        busy_until = np.maximum.accumulate(end_ns[flows])
        met.update(flows[1:][start_ns[flows[1:]] < busy_until[:-1]].tolist())
    return {one: times * queue_ns for one, times in job.queued.items() if one in met}
