"""Reads MLCommons Chakra's execution traces: protobuf (``*.et``), or JSON in two forms.

    COMP, MEM_LOAD, MEM_STORE, STORAGE, ...    COMPUTE
    COMM_COLL, COMM_SEND, COMM_RECV            COLLECTIVE, SEND, RECEIVE of ``comm_size`` bytes
    METADATA                                   left out: it takes no time

In our own traces, attributes hold the data without a field in Chakra (``export_chakra.py``), so all
spans are restored. Threads and streams (``tid``, ``stream``) become lanes if nodes have them.

Chakra's converter writes durations and dependencies, but no start times. If no node has one, each
node begins as soon as its dependencies have ended. The result is then a schedule, not a record of
what happened.
"""

from __future__ import annotations

from pathlib import Path

from byteprophet.timeline.chakra_graph import ChakraGraph
from byteprophet.timeline.chakra_json import ChakraJsonReader
from byteprophet.timeline.chakra_schema import begins_with_metadata, parse_messages
from byteprophet.timeline.events import Events
from byteprophet.timeline.foreign_files import is_json, read_bytes, read_chunks, with_first
from byteprophet.timeline.json_traces import json_parts


def read_chakra(path: Path, rank: int = 0) -> Events:
    """The spans in the file. ``rank`` is used if neither it nor its name (``*.<rank>.et``) has one.

    Raises ``UserError``, with one line, if the file is cut off, is not such a trace, or is empty.
    If a foreign file was cut off between two nodes, only dependencies on missing nodes reveal it.
    """
    first, chunks = with_first(read_chunks(path))
    if begins_with_metadata(first) or not is_json(first):
        return chakra_events(path, read_bytes(path, chunks), rank)
    reader = ChakraJsonReader(path)
    for key, value in json_parts(path, chunks):
        reader.take(key, value)
    return reader.events(rank)


def chakra_events(path: Path, content: bytes, rank: int) -> Events:
    """Like ``read_chakra``, for the content of a protobuf file."""
    graph = ChakraGraph(path)
    for message in parse_messages(path, content):
        graph.add(message)
    return graph.events(rank)
