"""Graphs of operations: what a job does and what it waits for, as plain data.

model.py     a graph: arrays of operations and dependencies, tables of devices, links and gates
builder.py   builds one operation by operation, or block by block
ps_job.py    a parameter-server job: what it computes when, on which network
ps_devices.py, ps_graph.py  its graph
measured.py  a recorded job as one: what its workers computed
measured_tensors.py, measured_settings.py  what they sent, and what their policy was told meanwhile
measured_network.py, measured_sending.py  what the network and the threads that send did
measured_stock.py  what workers sent that record no transfers
ring_job.py, ring_graph.py  an all-reduce job, and its graph
measured_ring.py, measured_links.py  a recorded job as one

What a graph means, and in which order things happen, is at the top of prophet/graph/graph.h.
"""

from __future__ import annotations

from byteprophet.graph.builder import GraphBuilder
from byteprophet.graph.model import (
    Connection,
    Device,
    Gate,
    GatedOperations,
    Graph,
    IterationMarks,
    Link,
    Memory,
    SerialDevice,
)

__all__ = [
    "Connection",
    "Device",
    "Gate",
    "GatedOperations",
    "Graph",
    "GraphBuilder",
    "IterationMarks",
    "Link",
    "Memory",
    "SerialDevice",
]
