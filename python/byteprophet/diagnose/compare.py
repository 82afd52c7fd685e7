"""Compares two runs: what changed, and where.

Times of parts are means over iterations and workers, so their changes sum to the change of the mean
iteration. The interval of the ratio of medians reflects the spread of the iterations
(``bench/spread.py``). It does not reflect differences between repeated runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from byteprophet.diagnose.breakdown import PARTS
from byteprophet.diagnose.diagnosis import Diagnosis, Share
from byteprophet.diagnose.facts import LINKS


@dataclass(frozen=True)
class Change:
    """Values of ``this`` run and the ``other``; None: not known. ``unit``: "ns" or "share"."""

    what: str
    unit: str
    this: float | None
    other: float | None


@dataclass(frozen=True)
class Comparison:
    """``ratio``: this run's median iteration over the other's, with its 95% interval.

    ``parts`` sum to ``iteration``. ``waits``: waits of the computing threads, by tensor, the
    largest changes first. ``shares``: how busy workers, links and servers were; a link only if both
    runs limited it, or none did. ``notes``: why the runs are not of the same job on the same links.
    """

    ratio: float
    ratio_low: float
    ratio_high: float
    iteration: Change
    parts: Sequence[Change]
    waits: Sequence[Change]
    shares: Sequence[Change]
    notes: Sequence[str]


def compare(this: Diagnosis, other: Diagnosis) -> Comparison:
    """How ``this`` differs from ``other``."""
    both = this, other
    # Importing this also imports the code that runs jobs; only a comparison should pay for that.
    from byteprophet.bench.spread import ratio

    over = ratio([(this.run.iteration_ns.tolist(), other.run.iteration_ns.tolist())])
    means_ns = [found.breakdown.parts_ns.mean(axis=(0, 1)) for found in both]
    parts = [
        Change(part, "ns", float(means_ns[0][i]), float(means_ns[1][i]))
        for i, part in enumerate(PARTS)
    ]
    waited_ns = [
        {name: float(times_ns.mean()) for name, times_ns in found.breakdown.waits_ns.items()}
        for found in both
    ]
    waits = [
        Change(name, "ns", waited_ns[0].get(name, 0.0), waited_ns[1].get(name, 0.0))
        for name in dict.fromkeys([*waited_ns[0], *waited_ns[1]])
    ]
    shares = [{one.name: one for one in found.mean_shares()} for found in both]
    return Comparison(
        ratio=over.value,
        ratio_low=over.interval[0],
        ratio_high=over.interval[1],
        iteration=Change("iteration", "ns", *(float(means.sum()) for means in means_ns)),
        parts=parts,
        waits=sorted(waits, key=lambda c: -abs((c.this or 0) - (c.other or 0))),
        shares=[
            _share_change(name, shares[0].get(name), shares[1].get(name))
            for name in dict.fromkeys([*shares[0], *shares[1]])
        ],
        notes=_differences(this, other),
    )


def _share_change(name: str, this: Share | None, other: Share | None) -> Change:
    """How busy something was. ``other`` is not comparable if it is a share of something else."""
    if this and other and this.of_rate != other.of_rate:
        other = None
    return Change(name, "share", this.share if this else None, other.share if other else None)


def _differences(this: Diagnosis, other: Diagnosis) -> list[str]:
    """What makes a comparison one of unlike jobs, as far as it is known."""
    notes = []
    workers = [len(found.run.workers) for found in (this, other)]
    if workers[0] != workers[1]:
        notes.append(f"this run has {workers[0]} workers, the other {workers[1]}")
    sizes = [sum(one.size_bytes for one in found.gradients[0]) for found in (this, other)]
    only_served = not any(
        found.run.routed.meshed for found in (this, other)
    )  # the rest has no rows
    if only_served and all(sizes) and sizes[0] != sizes[1]:
        notes.append(
            f"gradients of this run have {sizes[0] / 1e6:.1f} MB, those of the other "
            f"{sizes[1] / 1e6:.1f} MB"
        )
    configured = this.run.config and other.run.config
    if configured and any((this.facts[n] or None) != (other.facts[n] or None) for n in LINKS):
        notes.append("the links of the runs have different rates")
    return notes
