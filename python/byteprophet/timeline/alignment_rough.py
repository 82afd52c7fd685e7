"""Aligns clocks roughly, in whole nanoseconds. The error is about the delay plus the drift.

Clocks may have any origin: one counts from 1970, another from its machine's start. Fine alignment
uses floating-point arithmetic, which needs small numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.sparse.csgraph import breadth_first_order, connected_components

from byteprophet.errors import UserError
from byteprophet.timeline.alignment_evidence import Evidence
from byteprophet.timeline.alignment_stamps import Pair, Stamps, graph_of


@dataclass(frozen=True)
class Frame:
    """A recording from ``middle_ns - half_ns`` to ``middle_ns + half_ns`` on the reference's clock.

    ``rough_ns`` is roughly how far each machine's clock is ahead of the reference's.
    """

    rough_ns: tuple[int, ...]
    middle_ns: int
    half_ns: int

    def local_ns(self, machine: int) -> tuple[int, int, int]:
        """The rough start, middle and end of the recording on the machine's clock."""
        middle = self.rough_ns[machine] + self.middle_ns
        return middle - self.half_ns, middle, middle + self.half_ns

    def stamps(self, pair: Pair, evidence: Evidence) -> Stamps:
        """``evidence`` between the machines of ``pair``, with times counted from the middle."""
        causes = evidence.cause_ns - self.local_ns(pair[0])[1]
        effects = evidence.effect_ns - self.local_ns(pair[1])[1]
        return Stamps(pair, causes, effects - causes, evidence.sizes(), evidence.minimum_ns)


def frame(
    machines: Sequence[str], reference: int, evidence: Sequence[tuple[Pair, Evidence]]
) -> Frame:
    """The frame of ``evidence``, none of which is empty.

    Raises ``UserError`` if no evidence connects a machine with the reference.
    """
    graph = graph_of(len(machines), (pair for pair, _ in evidence))
    _, part_of = connected_components(graph, directed=False)
    apart = [name for i, name in enumerate(machines) if part_of[i] != part_of[reference]]
    if apart:
        raise UserError(
            f"clocks cannot be aligned: no events connect {', '.join(apart)} with "
            f"{machines[reference]}, directly or through other machines: record transfers between "
            "them, or leave them out"
        )
    # The smallest difference of timestamps is wrong by one delay plus the drift over the recording.
    ahead: dict[Pair, int] = {}
    for (a, b), each in evidence:
        least = int((each.effect_ns - each.cause_ns).min())
        ahead[a, b] = min(ahead.get((a, b), least), least)
    for (a, b), least in list(ahead.items()):
        ahead.setdefault((b, a), -least)
    rough = [0] * len(machines)
    order, before = breadth_first_order(graph, reference, directed=False)
    for machine in order[1:].tolist():
        rough[machine] = rough[before[machine]] + ahead[int(before[machine]), machine]
    ends = [
        int(end) - rough[machine]
        for pair, each in evidence
        for machine, stamps in zip(pair, (each.cause_ns, each.effect_ns), strict=True)
        for end in (stamps.min(), stamps.max())
    ] or [0]
    middle = (min(ends) + max(ends)) // 2
    return Frame(tuple(rough), middle, max(max(ends) - middle, 1))
