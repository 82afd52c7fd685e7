"""Turns each table of events into tracks of its role's process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from byteprophet.timeline.events import Events
from byteprophet.timeline.perfetto_tracks import Place, Text, Times, Tracks
from byteprophet.timeline.tables import SPANS, TRANSFERS, Kind, Rows, What
from byteprophet.timeline.trace_file import quoted

Label = Callable[[int], str]
"""Returns the quoted name of a partition, given its key."""


def partition_labels(events: Sequence[Events]) -> Label:
    """A function that names partitions after their tensors, whose names the workers recorded."""
    tensors = {
        number: name
        for table in events
        if table.table is TRANSFERS
        for number, name in table.names.items()
    }
    labels: dict[int, str] = {}

    def label(key: int) -> str:
        if key not in labels:
            tensor = tensors.get(key >> 16) or f"tensor {key >> 16}"
            labels[key] = quoted(f"{tensor} [{key & 0xFFFF}]")
        return labels[key]

    return label


def show_transfers(tracks: Tracks, pid: int, rows: Rows, label: Label) -> Mapping[str, Place]:
    """Shows a worker's partitions, and its bytes in flight."""
    sent = rows[(rows["sent_ns"] != 0) & (rows["acked_ns"] != 0)]
    sizes = sent["size_bytes"].astype(np.int64)
    times_ns = np.concatenate([sent["sent_ns"], sent["acked_ns"]])
    tracks.counter(pid, "in flight", "bytes", times_ns, np.concatenate([sizes, -sizes]))
    stages = {
        "queued": ("ready_ns", "sent_ns"),
        "push": ("sent_ns", "acked_ns"),
        "pull": ("acked_ns", "pulled_ns"),
    }
    told = ("size_bytes", "server", "iteration", "priority", "key")
    return _show_stages(tracks, pid, rows, label, stages, told)


def show_served(tracks: Tracks, pid: int, rows: Rows, label: Label) -> Mapping[str, Place]:
    """Shows a server's partitions."""
    stages = {
        "arrived": ("arrived_ns", "sum_begin_ns"),
        "sum": ("sum_begin_ns", "sum_end_ns"),
        "answer": ("asked_ns", "answered_ns"),
    }
    told = ("size_bytes", "worker", "round", "key")
    return _show_stages(tracks, pid, rows, label, stages, told)


def show_messages(tracks: Tracks, pid: int, rows: Rows, label: Label) -> None:
    """Shows the messages that a role sent and those that it received, on separate tracks."""
    for kind in (Kind.SEND, Kind.RECEIVE):
        here = rows[rows["kind"] == kind]
        whats = [What(number).name.lower() for number in here["what"].tolist()]
        texts = [
            f'{label(key)[:-1]} {what}"'
            for key, what in zip(here["key"].tolist(), whats, strict=True)
        ]
        arguments = _arguments(here, ("size_bytes", "peer", "request", "key"))
        begins_ns, ends_ns = here["begin_ns"], here["end_ns"]
        name = kind.name.lower()
        tracks.overlapping(pid, name, begins_ns, ends_ns, texts.__getitem__, arguments)


def show_spans(tracks: Tracks, pid: int, tables: Sequence[Events]) -> None:
    """Shows a role's spans except iterations. Each lane is a track, named after its kinds."""
    number = 0
    for table in tables:
        names = {index: quoted(name or "?") for index, name in table.names.items()}
        rows = table.rows[table.rows["kind"] != Kind.ITERATION]
        rows = rows[np.argsort(rows["lane"], kind="stable")]
        by_lane = np.split(rows, np.flatnonzero(np.diff(rows["lane"])) + 1)
        for here in filter(len, by_lane):
            kinds = ", ".join(Kind(kind).name.lower() for kind in np.unique(here["kind"]).tolist())
            texts = [names.get(index, '"?"') for index in here["name"].tolist()]
            told = [
                f'{{"kind": "{Kind(kind).name.lower()}", "size_bytes": {size_bytes}, '
                f'"iteration": {iteration}}}'
                for kind, size_bytes, iteration in here[
                    ["kind", "size_bytes", "iteration"]
                ].tolist()
            ]
            tracks.nested(
                pid,
                f"{kinds} (lane {number})",
                here["begin_ns"],
                here["end_ns"],
                texts.__getitem__,
                told.__getitem__,
            )
            number += 1


def show_iterations(tracks: Tracks, pid: int, tables: Sequence[Events]) -> None:
    """Shows a role's iterations as recorded.

    Without recorded iterations, a worker's first ready gradient begins each iteration.
    """
    spans = [table.rows for table in tables if table.table is SPANS]
    recorded = [rows[rows["kind"] == Kind.ITERATION] for rows in spans]
    numbers = np.concatenate([np.zeros(0, np.int64), *(r["iteration"] for r in recorded)])
    begins_ns = np.concatenate([np.zeros(0, np.int64), *(r["begin_ns"] for r in recorded)])
    ends_ns = np.concatenate([np.zeros(0, np.int64), *(r["end_ns"] for r in recorded)])
    transfers = [table.rows for table in tables if table.table is TRANSFERS]
    if transfers and not len(numbers):
        numbers, begins_ns, ends_ns = _seen_in_transfers(np.concatenate(transfers))
    texts = [f'"iteration {number}"' for number in numbers.astype(np.int64).tolist()]
    tracks.overlapping(pid, "iterations", begins_ns, ends_ns, texts.__getitem__, lambda _: "{}")


def _seen_in_transfers(rows: Rows) -> tuple[Times, Times, Times]:
    rows = rows[(rows["iteration"] > 0) & (rows["ready_ns"] > 0)]
    rows = rows[np.lexsort((rows["ready_ns"], rows["iteration"]))]
    numbers, first = np.unique(rows["iteration"], return_index=True)
    begins_ns = rows["ready_ns"][first]
    last_ns = rows["pulled_ns"].max(initial=0)
    # Iterations follow one another. Even if a file says otherwise, none must end before it begins.
    ends_ns = np.maximum(begins_ns, np.append(begins_ns[1:], last_ns)[: len(begins_ns)])
    return numbers.astype(np.int64), begins_ns, ends_ns


def _show_stages(
    tracks: Tracks,
    pid: int,
    rows: Rows,
    label: Label,
    stages: Mapping[str, tuple[str, str]],
    told: Sequence[str],
) -> Mapping[str, Place]:
    texts = [label(key) for key in rows["key"].tolist()]
    arguments = _arguments(rows, told)
    return {
        stage: tracks.overlapping(pid, stage, rows[begin], rows[end], texts.__getitem__, arguments)
        for stage, (begin, end) in stages.items()
    }


def _arguments(rows: Rows, told: Sequence[str]) -> Text:
    """A function that returns a row's fields ``told`` as JSON."""
    template = "{" + ", ".join(f'"{name}": %d' for name in told) + "}"
    values = list(zip(*(rows[name].tolist() for name in told), strict=True))
    return lambda row: template % values[row]
