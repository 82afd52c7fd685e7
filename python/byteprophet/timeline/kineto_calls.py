"""Finds the call of a collective that launched an NCCL kernel, for data that only the call has.

In later versions of PyTorch, kernel events state their sizes. In earlier versions, only the call
does. It consists of three nested events on the calling thread, ``c10d::allreduce_``,
``record_param_comms`` and ``nccl:all_reduce``, some of which have shapes. The launch event inside
has the kernel's correlation id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Track = tuple[str, str]


@dataclass
class Call:
    """One event of a collective's call. ``message_bytes`` and ``tensor_bytes`` are 0 if not known.

    ``name`` is an annotation's name without the backend, and "" for other events.
    """

    begin_ns: int
    end_ns: int
    name: str
    message_bytes: int
    tensor_bytes: int


@dataclass
class Calls:
    """Calls by thread, and launches."""

    calls: dict[Track, list[Call]] = field(default_factory=dict)
    launches: dict[int, tuple[Track, int]] = field(default_factory=dict)
    """The thread and time of each launch, by correlation id."""

    def of_kernels(self, correlations: Iterable[int]) -> Mapping[int, tuple[str, int]]:
        """The name and the bytes of the call that launched each kernel, by correlation id.

        Kernels that no call launched are left out. If a call launched several kernels, the first
        gets all of its bytes and the others get none.
        """
        by_track: dict[Track, list[tuple[int, int]]] = {}
        for correlation in set(correlations) & self.launches.keys():
            track, time_ns = self.launches[correlation]
            by_track.setdefault(track, []).append((time_ns, correlation))
        found: dict[int, tuple[str, int]] = {}
        for track, launches in by_track.items():
            told: set[int] = set()
            for correlation, around in _around(sorted(launches), self.calls.get(track, [])):
                name = next((call.name for call in reversed(around) if call.name), "")
                size_bytes = 0 if id(around[-1]) in told else _bytes(around)
                told.add(id(around[-1]))
                found[correlation] = name, size_bytes
        return found


def _around(
    launches: Sequence[tuple[int, int]], calls: Sequence[Call]
) -> Iterable[tuple[int, Sequence[Call]]]:
    """Yields each launch inside calls, in order of time, with these calls, the innermost last."""
    waiting = sorted(calls, key=lambda call: (call.begin_ns, -call.end_ns), reverse=True)
    open_calls: list[Call] = []
    for time_ns, correlation in launches:
        while waiting and waiting[-1].begin_ns <= time_ns:
            call = waiting.pop()
            while open_calls and open_calls[-1].end_ns <= call.begin_ns:
                open_calls.pop()
            open_calls.append(call)
        while open_calls and open_calls[-1].end_ns < time_ns:
            open_calls.pop()
        if open_calls:
            yield correlation, open_calls


def _bytes(around: Sequence[Call]) -> int:
    """The innermost known message size; without one, the largest size of the tensors."""
    said = next((call.message_bytes for call in reversed(around) if call.message_bytes), 0)
    return said or max(call.tensor_bytes for call in around)
