"""Graphs of operations: what a job does and what it waits for, as plain data.

model.py     a graph: arrays of operations and dependencies, tables of devices, links and gates
labels.py    the labels of operations: kind, rank, peer, iteration, tensor, part
builder.py   builds a graph, operation by operation or in arrays; columns.py stores these
workers.py   what every worker has: a link, and what it computes
cores.py     the cores that workers share
ps_devices.py, ps_transfers.py, ps_graph.py  the graph of a job with servers
gloo_graph.py  the graph of a job with gloo's collectives, whose optimizer waits for all of them
mesh_transfers.py, mesh_graph.py  the graph of a job whose ranks exchange shards by priority
mixed_graph.py  the graph of a job with servers and such an exchange

The top of prophet/graph/graph.h defines the meaning of a graph and the order of events.
"""

from __future__ import annotations

from byteprophet.graph.builder import GraphBuilder
from byteprophet.graph.labels import Kind, Label, Labels
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
    "Kind",
    "Label",
    "Labels",
    "Link",
    "Memory",
    "SerialDevice",
]
