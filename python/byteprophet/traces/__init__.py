"""Replays profiles of training jobs, and predicts how these jobs would change.

work.py        a rank's trace as tasks that need each other
messages.py    collectives and point-to-point messages, as profiles name them
profile.py     reads ``torch.profiler``'s traces: calls on threads, work on devices, waits
threads.py     when threads are busy, and for whom they wait while they are not
streams.py     the work on each stream, and what it waited for
synchronise.py waits of the host for streams
launch_queue.py  waits of the host for places in full queues of launches
rank.py        puts these together: the tasks of a rank
chakra.py, write_chakra.py  MLCommons Chakra's execution traces as tasks, and the reverse
load.py        files and folders of either kind
matching.py    the same collective in several ranks' traces
clocks.py      ranks on one clock
graph.py       the graph of all ranks
result.py      what the replay says: iterations, use of time, critical path
retarget.py    other data-parallel size, other links
data_parallel.py, link_times.py  which groups are data parallelism's; the model of links
perfetto.py    a replay for Perfetto
"""

from __future__ import annotations
