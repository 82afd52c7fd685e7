"""Makes a plan for all workers from their reports: a pure function of plain data.

**Ready times.** A tensor can be summed when the last worker has sent it. So its ready time and
spread are those of the worker where it is ready last.

**Link.** A worker's bandwidth is that of its slower direction to all servers together, because
everything that is pushed has to come back. The log shows the bandwidth of the slowest worker, which
delays all others. Message cost and delay are the largest ones of pushes; those of pulls are not
used, because an answer to a pull may have waited for other workers.

**Blocks.** Blocks are the intervals between predicted releases, with the tensors sent in each.
These are the paper's blocks (Fig. 6, Algorithm 1), by strict priority in the fluid limit
(``strict_priority.py``). They only explain a plan: the policy decides by itself, message by
message, from the ready times.

**Prediction and settings.** The job is simulated (byteprophet.engine) with the real policy on these
ready times and links, with the job's own settings and with other window sizes. A window is changed
only if that is clearly faster, because the simulation models neither jitter nor CPU. A plan does
not set the policy's bandwidth: the policy estimates its link itself, and adapts faster than plans.

**Order.** All workers must send in the same order; otherwise sums wait for tensors that only some
workers have sent (prophet/policy/planned_order.h). The policy derives the order from the ready
times and the bandwidth of the slowest link, the setting plan_bandwidth_bps.

**Links that differ little** are simulated as equal ones (``alike``). That takes as long as a worker
per class of links takes. Of 2,049 random plans, it moved the prediction of 19 in 20 by less than
0.2%, and of none by more than 3.4%.

**Host.** The simulation models no processors. What an iteration takes of them is known from the
workers' hosts (``Facts.host_ns``); no order makes it less. If it is known, the job is simulated
again, with the plan and in order of arrival with fifo's partitions, on links as they were seen at
their best. ``arrival_order.py`` decides between the two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from byteprophet import _core
from byteprophet.control.messages import Block, Ready, Sample
from byteprophet.engine import simulate
from byteprophet.errors import UserError
from byteprophet.job import (
    Cluster,
    Costs,
    Host,
    Job,
    Model,
    Parameter,
    Policy,
    Strategy,
    Times,
)
from byteprophet.job.partitions import numbers_of
from byteprophet.profile.model import Profile, TensorProfile
from byteprophet.schedulers import LARGEST_PARTITION, PARTITION, STOCK_PARTITION_BYTES
from byteprophet.schedulers import PLANNED_FOR as _ORDER
from byteprophet.strict_priority import Segment, strict_priority

_TOGETHER_NS = 500_000  # releases closer than this count as one
_NS_BITS = 1e9
_WINDOW = "window_max_bytes"
_SMALLEST_WINDOW = (PARTITION, "window_floor_bytes")
_SIZES = (0.25, 0.5, 2.0, 4.0)  # relative to the window that the job started with
_CLEARLY = 0.98
_ITERATIONS = 4
_FEW_LINKS = 4  # so many different ones are simulated as they are
_ALIKE = 0.025  # how much faster than the slowest links may be to count as equal
_IN_ORDER = "in_order"


class NoPlan(Exception):
    """The reports are missing or contradict each other. The text says so in one line."""


@dataclass(frozen=True)
class Link:
    """A worker's link. ``bandwidth_bps`` None: not known; it counts as unlimited."""

    bandwidth_bps: int | None
    spread_bps: int = 0
    message_cost_ns: int = 0
    delay_ns: int = 0


@dataclass(frozen=True)
class Facts:
    """The workers' reports, one entry per worker. ``settings``: those the job started with.

    ``host_ns``: the time that all cores of the busiest host need for what they do in an iteration;
    0 if it is not known.
    """

    policy: str
    settings: Mapping[str, int]
    profiles: Sequence[Profile]
    samples: Sequence[Sequence[Sample]]
    host_ns: int = 0

    @property
    def partition_bytes(self) -> int:
        """BytePS' partition size, which is the same in all workers."""
        return max(1, self.settings.get(PARTITION, STOCK_PARTITION_BYTES))


@dataclass(frozen=True)
class Merged:
    """All workers' profiles merged into one. ``tensors`` are in forward order."""

    tensors: Sequence[TensorProfile]
    backward_ns: int

    @property
    def ready_ns(self) -> list[int]:
        """Ready times of all tensors, counted from the first ready gradient."""
        return [tensor.ready_ns for tensor in self.tensors]


@dataclass(frozen=True)
class HostLimit:
    """What the links need for an iteration, as simulated, and what the cores of a host need.

    ``planned_ns``: the links, with the plan. ``arrival_ns``: the links, in order of arrival.
    """

    planned_ns: int
    arrival_ns: int
    host_ns: int

    @property
    def gain(self) -> float:
        """The share of an iteration in order of arrival that the plan saves."""
        return 1 - max(self.planned_ns, self.host_ns) / max(self.arrival_ns, self.host_ns, 1)


@dataclass(frozen=True)
class Solution:
    """A plan without its number and iteration. ``link`` is the link that it assumes.

    ``host`` is None if nothing is known of hosts, or if the job's settings decide the order.
    ``has_forward``: some worker has measured forward passes; otherwise, none are predicted.
    """

    settings: Mapping[str, int]
    ready: list[Ready]
    blocks: list[Block]
    predicted_iteration_ns: int
    link: Link
    host: HostLimit | None = None
    has_forward: bool = True

    def in_order(self) -> Solution:
        """The same, but gradients go in order of arrival. ``host`` must be known."""
        assert self.host is not None
        return replace(
            self,
            settings={**self.settings, _IN_ORDER: 1},
            predicted_iteration_ns=max(self.host.arrival_ns, self.host.host_ns),
        )

    def by_priority(self) -> Solution:
        """The same, but without an order: workers go back to the one on which they agreed, if any.

        The prediction stays.
        """
        none = {_ORDER: 0} if _ORDER in self.settings else {}
        return replace(self, settings={**self.settings, **none})

    @property
    def is_ordered(self) -> bool:
        """Whether all workers send in one planned order."""
        return bool(self.settings.get(_ORDER)) and not self.is_in_order

    @property
    def is_in_order(self) -> bool:
        """Whether gradients go in order of arrival."""
        return self.settings.get(_IN_ORDER) == 1


def solve(facts: Facts) -> Solution:
    """Makes the plan for ``facts``. Raises ``NoPlan`` if that is not possible."""
    merged = merge_profiles(facts.profiles)
    link = slowest_link(facts.samples)
    releases: list[tuple[float, int]] = [
        (ready_ns, place) for place, ready_ns in enumerate(merged.ready_ns)
    ]
    segments = strict_priority(
        releases,
        [_wire_ns(tensor.size_bytes, link, facts.partition_bytes) for tensor in merged.tensors],
    )
    ordered = link.bandwidth_bps is not None and facts.settings.get(_ORDER) == 0
    settings, predicted_ns = _choose(
        facts, merged, {_ORDER: link.bandwidth_bps or 0} if ordered else {}
    )
    host = None
    if facts.settings.get(_IN_ORDER) == 0:
        # Always set, even if it stays: an earlier plan may have changed it.
        settings[_IN_ORDER] = 0
        if facts.host_ns:
            seen = replace(facts, samples=[[_at_best(one) for one in own] for own in facts.samples])
            planned_ns = predict_ns(seen, merged, settings)
            host = HostLimit(planned_ns, _in_order_ns(seen, merged), facts.host_ns)
            predicted_ns = max(predicted_ns, facts.host_ns)
    return Solution(
        settings=settings,
        ready=[
            Ready(name=tensor.name, ready_ns=tensor.ready_ns, spread_ns=tensor.spread_ns)
            for tensor in merged.tensors
        ],
        blocks=blocks(list(segments), merged.ready_ns, [tensor.name for tensor in merged.tensors]),
        predicted_iteration_ns=predicted_ns,
        link=link,
        host=host,
        has_forward=any(tensor.forward_ns for tensor in merged.tensors),
    )


def merge_profiles(profiles: Sequence[Profile]) -> Merged:
    """Merges profiles: each tensor gets its latest ready time and its longest forward pass.

    Raises ``NoPlan`` if there is no profile or their tensors differ.
    """
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
    """The link of the worker with these ``samples``."""
    totals: list[tuple[int, int]] = []
    for direction in ("push", "pull"):
        there = [sample for sample in samples if sample.direction == direction]
        # A sample of all servers together is the best. Otherwise, the shares of servers add up.
        there = [sample for sample in there if sample.server is None] or there
        if there:
            spread_bps = math.hypot(*(sample.spread_bps or 0 for sample in there))
            totals.append((sum(sample.bandwidth_bps for sample in there), int(spread_bps)))
    if not totals:
        return Link(None)
    pushes = [sample for sample in samples if sample.direction == "push"]
    return Link(
        *min(totals),
        message_cost_ns=min(
            max((sample.message_cost_ns or 0 for sample in pushes), default=0),
            # Of slow links, whose transfers last long and differ much, estimates may be above it.
            _core.MAX_MESSAGE_COST_NS,
        ),
        delay_ns=max((sample.delay_ns or 0 for sample in pushes), default=0),
    )


def slowest_link(samples: Sequence[Sequence[Sample]]) -> Link:
    """The link of the slowest worker that has samples."""
    links = [link_of(of_worker) for of_worker in samples]
    known = [link for link in links if link.bandwidth_bps is not None]
    return min(known, key=lambda link: link.bandwidth_bps or 0, default=Link(None))


def alike(links: Sequence[Link]) -> list[Link]:
    """``links`` with few different bandwidths, none of them larger; the slowest stays as it is.

    All that differ little have that of the slowest among them, so that they are simulated together
    (prophet/engine/fold.h). The faster they are, the less they matter, and the more they may
    differ.
    """
    found = list(links)
    if len({link.bandwidth_bps for link in links}) <= _FEW_LINKS:
        return found
    slowest_bps, width = 0, _ALIKE / 2
    known = [at for at, link in enumerate(links) if link.bandwidth_bps is not None]
    for at in sorted(known, key=lambda at: links[at].bandwidth_bps or 0):
        bandwidth_bps = links[at].bandwidth_bps or 0
        if bandwidth_bps > slowest_bps * (1 + width):
            slowest_bps, width = bandwidth_bps, 2 * width
        found[at] = replace(links[at], bandwidth_bps=slowest_bps)
    return found


def blocks(
    segments: Sequence[Segment[float]], ready_ns: Sequence[int], names: Sequence[str]
) -> list[Block]:
    """The tensors sent between each two releases. Empty intervals are left out."""
    edges: list[float] = []
    for release in sorted(ready_ns):
        if not edges or release - edges[-1] >= _TOGETHER_NS:
            edges.append(release)
    edges.append(math.inf)
    found: list[Block] = []
    first = 0
    for starts_ns, ends_ns in itertools.pairwise(edges):
        while first < len(segments) and segments[first][1] <= starts_ns:
            first += 1
        inside: dict[str, None] = {}
        last_ns = starts_ns
        for begin_ns, end_ns, place, _ in itertools.islice(segments, first, None):
            if begin_ns >= ends_ns:
                break
            inside[names[place]] = None
            last_ns = min(end_ns, ends_ns)
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
    """The best settings for a plan, including ``order``, and the predicted iteration in ns."""
    window_bytes = facts.settings.get(_WINDOW)
    if window_bytes is None:
        return dict(order), predict_ns(facts, merged, order)
    smallest = max(facts.settings.get(name, 0) for name in _SMALLEST_WINDOW)
    sizes = {max(smallest, int(window_bytes * size)) for size in _SIZES} - {window_bytes}
    # The window is always set, even if it stays: an earlier plan may have changed it.
    best = {**order, _WINDOW: window_bytes}
    best_ns = predict_ns(facts, merged, best)
    limit_ns = best_ns * _CLEARLY
    for size in sorted(sizes):
        other = {**order, _WINDOW: size}
        other_ns = predict_ns(facts, merged, other)
        if other_ns < min(limit_ns, best_ns):
            best, best_ns = other, other_ns
    return best, best_ns


def _at_best(sample: Sample) -> Sample:
    """The link as it was seen at its best: one spread faster than its median.

    Messages that wait for a core make a link look slow, and its samples differ much then.
    """
    return sample.model_copy(
        update={"bandwidth_bps": sample.bandwidth_bps + (sample.spread_bps or 0)}
    )


def _in_order_ns(facts: Facts, merged: Merged) -> int:
    """The iteration in ns on the simulated links, if gradients go as they come.

    Partitions are then fifo's, unless the job's partition size is fixed.
    """
    settings = dict(facts.settings)
    if settings.get(LARGEST_PARTITION, 0):
        arrival = _core.default_settings("fifo")[PARTITION]
        settings[PARTITION] = min(arrival, settings[LARGEST_PARTITION])
    return predict_ns(replace(facts, settings=settings), merged, {_IN_ORDER: 1})


def predict_ns(facts: Facts, merged: Merged, settings: Mapping[str, int]) -> int:
    """The slowest worker's iteration in ns, in a simulation that has settled."""
    links = alike([link_of(of_worker) for of_worker in facts.samples])
    servers = 1 + max(
        (sample.server or 0 for of_worker in facts.samples for sample in of_worker), default=0
    )
    # Ready times count from the first ready gradient, which comes some time after backward begins.
    before_ns = max(0, merged.backward_ns - max(merged.ready_ns))
    shape = (len(links), 1, len(merged.tensors))
    ready_ns = np.array(merged.ready_ns, np.int64) + before_ns
    job = Job(
        Model(
            tuple(Parameter(tensor.name, max(1, tensor.size_bytes)) for tensor in merged.tensors)
        ),
        Times(
            forward_ns=np.broadcast_to([tensor.forward_ns for tensor in merged.tensors], shape),
            ready_ns=np.broadcast_to(ready_ns, shape),
            backward_ns=np.full(shape[:2], max(merged.backward_ns, max(merged.ready_ns))),
            update_ns=np.zeros(shape, np.int64),
        ),
        Cluster(
            tuple(Host(link.bandwidth_bps or 0, link.bandwidth_bps or 0) for link in links),
            (Host(),) * servers,
            Costs(
                delay_ns=max(link.delay_ns for link in links) // 2,
                message_cost_ns=max(link.message_cost_ns for link in links),
            ),
        ),
        Strategy(
            partition_bytes=facts.partition_bytes,
            numbers=numbers_of([tensor.name for tensor in merged.tensors]),
        ),
        Policy(facts.policy, {**facts.settings, **settings}),
    )
    try:
        # Servers answer by priority: patch 0031.
        run = simulate(job, iterations=_ITERATIONS, warmup_iterations=0, known_profile=True)
    except UserError as error:
        raise NoPlan(str(error)) from None
    return int(run.iteration_ns[-1])
