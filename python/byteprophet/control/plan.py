"""From what the workers report to what all of them adopt: a pure function, plain data in and out.

**Ready times.** A tensor can be summed when the last worker has sent it, so its ready time is that
of the worker where it comes last, with that worker's spread.

**Link.** Of each worker the sum over its servers, per direction; then the smallest, over workers
and directions: what is pushed has to come back, and the slowest worker holds up all. A message
costs what the dearest costs, an answer takes the longest of the delays.

**Blocks.** The intervals between predicted releases, and which tensors travel in each: the paper's
blocks (Fig. 6, Algorithm 1), by strict priority in the fluid limit (``fluid.py``). They explain a
plan. The policy decides by itself, message by message, from the ready times.

**Prediction.** The iteration that strict priority gives in the fluid limit, with the cost of every
message and one partition's way back.

**Settings.** None: the policy estimates its link by itself and follows it faster than any plan.
Ready times are what it cannot know: the other workers'.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from byteprophet.control.fluid import Segment, done_ns, forward_ends_ns, strict_priority
from byteprophet.control.messages import Block, Profile, Ready, Sample, Tensor

_TOGETHER_NS = 500_000  # releases closer than this are one
_NS_BITS = 1e9


class NoPlan(Exception):
    """There is nothing to plan from, or it contradicts itself; one line says what."""


@dataclass(frozen=True)
class Link:
    """The link that holds up all; ``bandwidth_bps`` None: not known, taken as unlimited."""

    bandwidth_bps: int | None
    spread_bps: int = 0
    message_cost_ns: int = 0
    delay_ns: int = 0


@dataclass(frozen=True)
class Facts:
    """What the workers report, each sequence with one entry per worker."""

    profiles: Sequence[Profile]
    samples: Sequence[Sequence[Sample]]
    partition_bytes: int


@dataclass(frozen=True)
class Solution:
    """A plan without its number and iteration."""

    settings: Mapping[str, int]
    ready: list[Ready]
    blocks: list[Block]
    predicted_iteration_ns: int
    link: Link


def solve(facts: Facts) -> Solution:
    """The plan for ``facts``; NoPlan where there is none."""
    merged = merge_profiles(facts.profiles)
    link = slowest_link(facts.samples)
    needs_ns = [
        _wire_ns(tensor.size_bytes, link, facts.partition_bytes) for tensor in merged.tensors
    ]
    segments = strict_priority([tensor.ready_ns for tensor in merged.tensors], needs_ns)
    names = [tensor.name for tensor in merged.tensors]
    return Solution(
        settings={},
        ready=[
            Ready(name=tensor.name, ready_ns=tensor.ready_ns, spread_ns=tensor.spread_ns)
            for tensor in merged.tensors
        ],
        blocks=blocks(segments, [tensor.ready_ns for tensor in merged.tensors], names),
        predicted_iteration_ns=_iteration_ns(merged, segments, link, facts.partition_bytes),
        link=link,
    )


def merge_profiles(profiles: Sequence[Profile]) -> Profile:
    """One profile in forward order, with the latest ready times and the longest computations."""
    if not profiles:
        raise NoPlan("no profile")
    by_name = [{tensor.name: tensor for tensor in profile.tensors} for profile in profiles]
    first, *others = by_name
    for other in others:
        different = sorted(first.keys() ^ other.keys())
        if different:
            raise NoPlan(f"the workers' profiles differ: tensor {different[0]!r} is not in all")
    tensors = []
    for name, tensor in first.items():
        everywhere = [of_worker[name] for of_worker in by_name]
        if len({one.size_bytes for one in everywhere}) != 1:
            raise NoPlan(f"the workers' profiles differ: tensor {name!r} has several sizes")
        latest = max(everywhere, key=lambda one: one.ready_ns)
        tensors.append(
            Tensor(
                name=name,
                size_bytes=tensor.size_bytes,
                forward_order=tensor.forward_order,
                ready_ns=latest.ready_ns,
                spread_ns=latest.spread_ns,
                forward_ns=max(one.forward_ns for one in everywhere),
            )
        )
    return Profile(
        forward_ns=max(profile.forward_ns for profile in profiles),
        backward_ns=max(profile.backward_ns for profile in profiles),
        tensors=sorted(tensors, key=lambda tensor: (tensor.forward_order, tensor.name)),
    )


def slowest_link(samples: Sequence[Sequence[Sample]]) -> Link:
    """See the top of the file; unlimited where no worker has a sample."""
    totals: list[tuple[int, int]] = []
    for of_worker in samples:
        for direction in ("push", "pull"):
            there = [sample for sample in of_worker if sample.direction == direction]
            if there:
                spread_bps = math.hypot(*(sample.spread_bps for sample in there))
                totals.append((sum(sample.bandwidth_bps for sample in there), int(spread_bps)))
    if not totals:
        return Link(None)
    bandwidth_bps, spread_bps = min(totals)
    everything = [sample for of_worker in samples for sample in of_worker]
    return Link(
        bandwidth_bps,
        spread_bps,
        max(sample.message_cost_ns or 0 for sample in everything),
        max(sample.delay_ns or 0 for sample in everything),
    )


def blocks(
    segments: Sequence[Segment], ready_ns: Sequence[int], names: Sequence[str]
) -> list[Block]:
    """What travels between two releases; intervals in which nothing does are left out."""
    edges: list[float] = []
    for release in sorted(ready_ns):
        if not edges or release - edges[-1] >= _TOGETHER_NS:
            edges.append(release)
    edges.append(math.inf)
    found: list[Block] = []
    first = 0
    for starts_ns, ends_ns in itertools.pairwise(edges):
        while first < len(segments) and segments[first].ends_ns <= starts_ns:
            first += 1
        inside: dict[str, None] = {}
        last_ns = starts_ns
        for segment in segments[first:]:
            if segment.starts_ns >= ends_ns:
                break
            inside[names[segment.tensor]] = None
            last_ns = min(segment.ends_ns, ends_ns)
        if inside:
            found.append(
                Block(starts_ns=int(starts_ns), ends_ns=round(last_ns), tensors=list(inside))
            )
    return found


def _wire_ns(size_bytes: int, link: Link, partition_bytes: int) -> float:
    messages = max(1, math.ceil(size_bytes / partition_bytes))
    rate_ns = 0.0 if link.bandwidth_bps is None else size_bytes * 8 * _NS_BITS / link.bandwidth_bps
    return messages * link.message_cost_ns + rate_ns


def _iteration_ns(
    merged: Profile, segments: Sequence[Segment], link: Link, partition_bytes: int
) -> int:
    """Backward, then forward, each of whose layers waits for what was pushed to be back."""
    left_ns = done_ns(segments, len(merged.tensors))
    # The last partition of a tensor comes back while nothing of the tensor is pushed any more.
    back_ns = [
        left
        + link.delay_ns
        + _wire_ns(min(tensor.size_bytes, partition_bytes), link, partition_bytes)
        for left, tensor in zip(left_ns, merged.tensors, strict=True)
    ]
    # Ready times count from the first ready gradient, which is some way into backward.
    backward_left_ns = max(tensor.ready_ns for tensor in merged.tensors)
    before_ns = max(0, merged.backward_ns - backward_left_ns)
    takes_ns = [tensor.forward_ns for tensor in merged.tensors]
    return round(before_ns + forward_ends_ns(back_ns, takes_ns, backward_left_ns))
