"""Graphs of operations: what a job does and what it waits for, as plain data.

model.py     a graph: arrays of operations and dependencies, tables of devices, links and gates
builder.py   builds one operation by operation, or block by block
ps_job.py    a parameter-server job: what it computes when, on which network
ps_graph.py  its graph
measured.py, measured_network.py  a recorded job as one
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
