"""From what the workers report to what all of them adopt: a pure function, plain data in and out.

**Ready times.** A tensor can be summed when the last worker has sent it, so its ready time is that
of the worker where it comes last, with that worker's spread.

**Link.** Of each worker the slower direction, as all servers together see it: what is pushed has
to come back. For what the log shows, the slowest worker's, who holds up all. Message cost and delay
are the pushes', the largest there is: an answer to a pull may have waited for other workers.

**Blocks.** The intervals between predicted releases, and which tensors travel in each: the paper's
blocks (Fig. 6, Algorithm 1), by strict priority in the fluid limit (``fluid.py``). They explain a
plan. The policy decides by itself, message by message, from the ready times.

**Prediction and settings.** The job is simulated (byteprophet.engine) with the very policy, on
these ready times and links: with the settings that it was started with, and with other window
sizes. A window is changed only where that wins clearly, as the simulation knows neither jitter nor
CPU. The policy's bandwidth is not set: it estimates its link itself, and follows it faster than a
plan.

**Order.** All workers send in one order, or sums wait for what one has sent and another has not
(prophet/planned_order.h). The policy makes it from the ready times and the bandwidth of the slowest
link, the setting plan_bandwidth_bps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from byteprophet import _core
from byteprophet.control.fluid import Segment, strict_priority
from byteprophet.control.messages import Block, Ready, Sample
from byteprophet.engine.layout import numbers_of, partitions_of
from byteprophet.profile.model import Profile, TensorProfile
from byteprophet.schedulers import PARTITION, STOCK_PARTITION_BYTES

_TOGETHER_NS = 500_000  # releases closer than this are one
_NS_BITS = 1e9
_WINDOW = "window_max_bytes"
_SMALLEST_WINDOW = (PARTITION, "window_floor_bytes")
_ORDER = "plan_bandwidth_bps"
_SIZES = (0.25, 0.5, 2.0, 4.0)  # of the window it was started with
_CLEARLY = 0.98
_ITERATIONS = 4


class NoPlan(Exception):
    """There is nothing to plan from, or it contradicts itself; one line says what."""


@dataclass(frozen=True)
class Link:
    """A worker's; ``bandwidth_bps`` None: not known, taken as unlimited."""

    bandwidth_bps: int | None
    spread_bps: int = 0
    message_cost_ns: int = 0
    delay_ns: int = 0


@dataclass(frozen=True)
class Facts:
    """What the workers report, one entry per worker; ``settings``: as the job was started."""

    policy: str
    settings: Mapping[str, int]
    profiles: Sequence[Profile]
    samples: Sequence[Sequence[Sample]]

    @property
    def partition_bytes(self) -> int:
        """Of BytePS, in all workers."""
        return max(1, self.settings.get(PARTITION, STOCK_PARTITION_BYTES))


@dataclass(frozen=True)
class Merged:
    """All workers' profiles in one; ``tensors`` in forward order."""

    tensors: Sequence[TensorProfile]
    backward_ns: int

    @property
    def ready_ns(self) -> list[int]:
        """From the first ready gradient."""
        return [tensor.ready_ns for tensor in self.tensors]


@dataclass(frozen=True)
class Solution:
    """A plan without its number and iteration; ``link`` is what it was made for."""

    settings: Mapping[str, int]
    ready: list[Ready]
    blocks: list[Block]
    predicted_iteration_ns: int
    link: Link


def solve(facts: Facts) -> Solution:
    """The plan for ``facts``; NoPlan where there is none."""
    merged = merge_profiles(facts.profiles)
    link = slowest_link(facts.samples)
    segments = strict_priority(
        merged.ready_ns,
        [_wire_ns(tensor.size_bytes, link, facts.partition_bytes) for tensor in merged.tensors],
    )
    ordered = link.bandwidth_bps is not None and facts.settings.get(_ORDER) == 0
    settings, predicted_ns = _choose(
        facts, merged, {_ORDER: link.bandwidth_bps or 0} if ordered else {}
    )
    return Solution(
        settings=settings,
        ready=[
            Ready(name=tensor.name, ready_ns=tensor.ready_ns, spread_ns=tensor.spread_ns)
            for tensor in merged.tensors
        ],
        blocks=blocks(segments, merged.ready_ns, [tensor.name for tensor in merged.tensors]),
        predicted_iteration_ns=predicted_ns,
        link=link,
    )


def merge_profiles(profiles: Sequence[Profile]) -> Merged:
    """The latest ready times and the longest computations, tensor by tensor."""
    if not profiles:
        raise NoPlan("no profile")
    by_name = [{tensor.name: tensor for tensor in profile.tensors} for profile in profiles]
    first, *others = by_name
    for other in others:
        different = sorted(first.keys() ^ other.keys())
        if different:
            raise NoPlan(f"the workers' profiles differ: tensor {different[0]!r} is not in all")
    tensors = []
    for name in first:
        everywhere = [of_worker[name] for of_worker in by_name]
        if len({one.size_bytes for one in everywhere}) != 1:
            raise NoPlan(f"the workers' profiles differ: tensor {name!r} has several sizes")
        latest = max(everywhere, key=lambda one: one.ready_ns)
        forward_ns = max(one.forward_ns for one in everywhere)
        tensors.append(latest.model_copy(update={"forward_ns": forward_ns}))
    tensors.sort(key=lambda tensor: (tensor.forward_order, tensor.name))
    return Merged(tensors, max(profile.backward_ns for profile in profiles))


def link_of(samples: Sequence[Sample]) -> Link:
    """One worker's."""
    totals: list[tuple[int, int]] = []
    for direction in ("push", "pull"):
        there = [sample for sample in samples if sample.direction == direction]
        # What sees all servers together knows best; else each server has a share of the link.
        there = [sample for sample in there if sample.server is None] or there
        if there:
            spread_bps = math.hypot(*(sample.spread_bps or 0 for sample in there))
            totals.append((sum(sample.bandwidth_bps for sample in there), int(spread_bps)))
    if not totals:
        return Link(None)
    pushes = [sample for sample in samples if sample.direction == "push"]
    return Link(
        *min(totals),
        message_cost_ns=max((sample.message_cost_ns or 0 for sample in pushes), default=0),
        delay_ns=max((sample.delay_ns or 0 for sample in pushes), default=0),
    )


def slowest_link(samples: Sequence[Sequence[Sample]]) -> Link:
    """That of the slowest worker of whom there are samples."""
    links = [link_of(of_worker) for of_worker in samples]
    known = [link for link in links if link.bandwidth_bps is not None]
    return min(known, key=lambda link: link.bandwidth_bps or 0, default=Link(None))


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
        for segment in itertools.islice(segments, first, None):
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


def _choose(facts: Facts, merged: Merged, order: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """The settings that a plan is to have, ``order`` among them, and the iteration they give."""
    window_bytes = facts.settings.get(_WINDOW)
    if window_bytes is None:
        return dict(order), predict_ns(facts, merged, order)
    smallest = max(facts.settings.get(name, 0) for name in _SMALLEST_WINDOW)
    sizes = {max(smallest, int(window_bytes * size)) for size in _SIZES} - {window_bytes}
    # Always named, also where it stays: an earlier plan may have changed it.
    best = {**order, _WINDOW: window_bytes}
    best_ns = predict_ns(facts, merged, best)
    limit_ns = best_ns * _CLEARLY
    for size in sorted(sizes):
        other = {**order, _WINDOW: size}
        other_ns = predict_ns(facts, merged, other)
        if other_ns < min(limit_ns, best_ns):
            best, best_ns = other, other_ns
    return best, best_ns


def predict_ns(facts: Facts, merged: Merged, settings: Mapping[str, int]) -> int:
    """The slowest worker's iteration in the engine, once it has settled."""
    links = [link_of(of_worker) for of_worker in facts.samples]
    servers = 1 + max(
        (sample.server or 0 for of_worker in facts.samples for sample in of_worker), default=0
    )
    sizes_bytes = tuple(max(1, tensor.size_bytes) for tensor in merged.tensors)
    numbers = numbers_of([tensor.name for tensor in merged.tensors])
    partitions = partitions_of(sizes_bytes, facts.partition_bytes, servers, numbers)
    # Ready times count from the first ready gradient, which is some way into backward.
    before_ns = max(0, merged.backward_ns - max(merged.ready_ns))
    try:
        result = _core.simulate(
            facts.policy,
            {**facts.settings, **settings},
            forward_ns=np.array([tensor.forward_ns for tensor in merged.tensors], np.int64),
            ready_ns=np.array(merged.ready_ns, np.int64) + before_ns,
            first_partition=partitions.first,
            size_bytes=partitions.size_bytes,
            server=partitions.server,
            backward_ns=max(merged.backward_ns, max(merged.ready_ns)),
            iterations=_ITERATIONS,
            worker_bandwidth_bps=np.array([link.bandwidth_bps or 0 for link in links], np.int64),
            server_bandwidth_bps=np.zeros(servers, np.int64),
            delay_ns=max(link.delay_ns for link in links) // 2,
            message_cost_ns=max(link.message_cost_ns for link in links),
            answer_by_priority=True,  # patch 0031
            known_profile=True,
        )
    except ValueError as error:
        raise NoPlan(str(error)) from None
    return int(np.diff(result["start_ns"], axis=1)[:, -1].max())
