"""Writes lanes of roles for https://ui.perfetto.dev: each role is a process, its lanes are threads.

The format is that of ``perfetto.py``. A lane whose slices overlap has several threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from byteprophet.timeline.perfetto_tracks import Tracks
from byteprophet.timeline.role_lanes import Lane
from byteprophet.timeline.trace_file import new_trace_file, quoted


def write_lanes(path: Path, lanes: Sequence[Lane]) -> None:
    """Write ``lanes``, whose times count from 0, to ``path``; gzipped if it ends in ``.gz``."""
    roles = list(dict.fromkeys(lane.role for lane in lanes))
    with new_trace_file(path) as file:
        tracks = Tracks(file, 0, next_tid=len(roles) + 1)
        for pid, role in enumerate(roles, 1):
            file.process(pid, role, pid)
        for lane in lanes:
            pid = roles.index(lane.role) + 1
            for number, apart in enumerate(lane.spread(), 1):
                names = [quoted(name or "?") for name in apart.name]
                told = [
                    f'{{"kind": {quoted(kind)}, "size_bytes": {size_bytes}}}'
                    for kind, size_bytes in zip(apart.kind, apart.size_bytes.tolist(), strict=True)
                ]
                label = lane.label if number == 1 else f"{lane.label} {number}"
                tracks.nested(
                    pid, label, apart.begin_ns, apart.end_ns, names.__getitem__, told.__getitem__
                )
        file.end({"roles": roles})
