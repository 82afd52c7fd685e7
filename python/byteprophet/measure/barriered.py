"""Measures a recorded job that uses gloo's collectives and waits for all of them before it steps.

These are DistributedDataParallel, WFBP and FSDP2. DDP changes its buckets once it has seen the
order of gradients. The measurement therefore covers consecutive iterations that every rank recorded
completely, and in which it reduced its last buckets. It takes these times from spans:

    forward  from the end of the previous layer to the end of this one, without waits; the script's
             own work between two layers counts as part of the second one. What happens between the
             first backward pass and the last, which alone reduces (``no_sync()``), belongs to the
             last parameter (``Times``)
    ready    from the end of the forward pass to the end of the parameter's BACKWARD, adjusted so
             that at least one gradient of a bucket is ready when the bucket's collective begins,
             and none is ready later
    update   from the end of the last collective to the next iteration
    bucket   what a bucket of DistributedDataParallel takes the training thread; "ready" is without
             what earlier buckets took

``links.py`` measures the network. All ranks' times must be on one clock.

``strategy.json``, if there is one, lists the gradients of each bucket. Otherwise, gradients are
known by their layers only, and fill the buckets in the order in which they became ready.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.job import Bucket, Cluster, Job, Model, Parameter, Strategy, Times
from byteprophet.job.strategy import DDP, FSDP2
from byteprophet.job.strategy_file import Used
from byteprophet.job.times import Int64Array
from byteprophet.measure.collectives import ALL_GATHER
from byteprophet.measure.computation import (
    add_forward,
    between_passes,
    first_gradient_ns,
    last_places,
)
from byteprophet.measure.links import SMALL_NS, measure_links
from byteprophet.measure.processors import Arrivals, Clocks, Use
from byteprophet.measure.tensors import (
    by_iteration,
    check_extent,
    check_ranks,
    layer_of,
    recorded_too_early,
    whole_iterations,
)
from byteprophet.measure.waits import waits_for_all
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import SPANS, Kind, Rows
from byteprophet.workload.run_config import link_limits_bps

HAND_OVER = "hand over bucket "  # torch/recording/ddp_spans.py
_SHORTEST = 0.1
_OFTEN = 3  # every third iteration
_ASSUMED_BUCKET_NS = 400_000
"""What 11 to 16 buckets took beyond 2 or 3 in jobs on two cores (experiments/foretold.py)."""
TURN_NS = 3_000_000
"""``Costs.turn_ns`` of Linux 6.18 on two cores, with which recorded jobs of 4 ranks are replayed
best, of 3, 4 and 5 ms (``experiments/foretold.py``)."""
_ALL = "model"  # the only parameter of a job that recorded no gradients
_UNKNOWN = (
    "no strategy.json says which gradients share a bucket: DistributedDataParallel did not rebuild "
    "its buckets (fewer than 4 iterations)"
)


def measure_barriered(
    recorded: Sequence[Events],
    config: Mapping[str, Any],
    used: Used | None,
    use: Use | None = None,
) -> tuple[Job, Int64Array]:
    """Measure the job that recorded ``recorded``.

    Returns it with the starts of its iterations, shape (ranks, iterations + 1).
    ``config`` is the content of the run's ``config.toml``. ``use``: of the cores that ranks share;
    None: they share none, or it is not known. UserError if a recording is missing.
    """
    processes = config["workers"] * config["local_ranks"]
    spans = [_spans_of(recorded, rank) for rank in range(processes)]
    ranks = [_Rank(events) for events in spans]
    check_ranks(
        {events.origin.rank for events in recorded if events.table is SPANS}, range(processes)
    )
    numbers = _iterations(ranks, 1 if used is None else used.since)
    if used is None:
        used = _told_by_spans(ranks[0], numbers)
    _check_buckets(ranks, numbers, used)
    check_extent(len(numbers), len(used.model) + len(used.strategy.buckets))
    halves = used.strategy.runtime == FSDP2
    sizes = ranks[0].sizes[numbers[-1]]
    steps = (1 if halves else 2) * (processes - 1)
    moved = np.array(sizes) * (1 if halves else 2) * (processes - 1) / processes
    clocks = None
    if use is not None:
        arrivals = _arrivals(ranks, numbers, moved, steps)
        clocks = Clocks(spans, [(each,) for each in arrivals], use)
    measured = [_Times(rank, numbers, used, clocks) for rank in ranks]
    bucket_ns = _bucket_ns(measured) if used.strategy.runtime == DDP else 0
    for each in measured:
        each.leave_out(bucket_ns)
    times = Times(
        forward_ns=np.stack([each.forward_ns for each in measured]),
        ready_ns=np.stack([each.ready_ns for each in measured]),
        backward_ns=np.stack([each.ready_ns.max(axis=1) for each in measured]),
        update_ns=np.stack([each.update_ns for each in measured]),
        between_ns=between_passes(np.stack([each.between_ns for each in measured])),
        waits_for_all=all(waits_for_all(events, numbers) for events in spans),
    )
    limits_bps = link_limits_bps(config)
    cluster = measure_links(
        np.stack([each.began_ns for each in measured]),
        np.stack([each.ended_ns for each in measured]),
        moved,
        limits_bps,
        steps,
    )
    cluster = replace(cluster, costs=replace(cluster.costs, bucket_ns=bucket_ns))
    if use is not None:
        cluster = _waiting_for_cores(use.on(cluster, limits_bps), steps)
    job = Job(used.model, times, cluster, used.strategy)
    return job, np.stack([each.start_ns for each in measured])


def _waiting_for_cores(cluster: Cluster, steps: int) -> Cluster:
    """``cluster`` whose threads wait for cores; ``steps``: of a collective.

    So what steps seemed to take beyond those of a small collective was such waiting.
    """
    costs = cluster.costs
    delay_ns = min(costs.delay_ns, SMALL_NS // max(1, steps))
    return replace(cluster, costs=replace(costs, delay_ns=delay_ns, turn_ns=TURN_NS))


def _spans_of(recorded: Sequence[Events], rank: int) -> Events:
    """A rank's first table of spans."""
    for events in recorded:
        if events.table is SPANS and events.origin.rank == rank:
            return events
    raise UserError(
        f"has no spans of rank {rank}: record a model in DistributedDataParallel, or call "
        "byteprophet.torch.record(model) in the script"
    )


class _Rank:
    """What one rank recorded. ``sizes``: of collectives, per iteration, in the order they began.

    ``reduces``: how many collectives besides all-gathers an iteration has.
    """

    def __init__(self, events: Events) -> None:
        self.rank = events.origin.rank
        self.names = events.names
        rows = np.sort(events.rows, order="end_ns")
        own = by_iteration(rows)
        self.rows = {number: own[number] for number in whole_iterations(rows).tolist()}
        self.sizes = {
            number: tuple(self.of(number, Kind.COLLECTIVE, "begin_ns")["size_bytes"].tolist())
            for number in self.rows
        }
        self.reduces = {
            number: sum(
                not self.names[name].startswith(ALL_GATHER)
                for name in self.of(number, Kind.COLLECTIVE)["name"].tolist()
            )
            for number in self.rows
        }

    def of(self, iteration: int, kind: Kind, order: str = "end_ns") -> Rows:
        """The spans of one kind."""
        rows = self.rows[iteration]
        return np.sort(rows[rows["kind"] == kind], order=order)

    def gradients(self, iteration: int) -> Rows:
        """The BACKWARD spans by end: of each gradient the last one, which is then complete."""
        rows = self.of(iteration, Kind.BACKWARD)
        _, last = np.unique(rows["name"][::-1], return_index=True)
        return rows[np.sort(len(rows) - 1 - last)]


def _arrivals(
    ranks: Sequence[_Rank],
    numbers: Sequence[int],
    moved_bytes: npt.NDArray[np.float64],
    messages: int,
) -> list[Arrivals]:
    """What arrived at each rank in the iterations ``numbers``; ``messages``: of a collective."""
    collectives = [
        [rank.of(number, Kind.COLLECTIVE, "begin_ns") for number in numbers] for rank in ranks
    ]
    begin_ns = np.max([[rows["begin_ns"] for rows in own] for own in collectives], axis=0)
    return [
        Arrivals(
            begin_ns.ravel(),
            np.concatenate([rows["end_ns"] for rows in own]),
            np.tile(moved_bytes, len(numbers)),
            messages,
        )
        for own in collectives
    ]


def _bucket_ns(measured: Sequence[_Times]) -> int:
    """What a bucket takes the training thread beside its bytes.

    The shortest times from the last gradient to the collective are those of small buckets, because
    the gradients of a bucket are divided there. What follows, its launch, has spans of its own.
    Older runs have none: then the cost is not known, and ``_ASSUMED_BUCKET_NS`` is taken for it, so
    that many small buckets are not free.
    """
    launches_ns = [time_ns for each in measured for time_ns in each.launches_ns]
    if not launches_ns:
        return _ASSUMED_BUCKET_NS
    begins_ns = [time_ns for each in measured for time_ns in each.begins_ns] or [0]
    return int(np.quantile(begins_ns, _SHORTEST) + np.median(launches_ns))


def _iterations(ranks: Sequence[_Rank], since: int) -> list[int]:
    """Numbers of the measured iterations, in ascending order."""
    common = set.intersection(*(set(rank.rows) for rank in ranks))
    if not common:
        raise UserError("no iteration was recorded completely")
    reduced = [number for number in common if all(rank.reduces[number] for rank in ranks)]
    last = max(reduced, default=max(common))  # a script may end with a forward pass alone
    sizes = ranks[0].sizes[last]
    for rank in ranks:
        if not rank.reduces[last]:
            raise UserError(f"rank {rank.rank} recorded no collectives in iteration {last}")
        if rank.sizes[last] != sizes:
            raise UserError(f"rank {rank.rank} reduced other buckets than rank 0")
    first = last
    while first - 1 in common and all(rank.sizes[first - 1] == sizes for rank in ranks):
        if first <= since:
            break
        first -= 1
    if last < since:
        raise recorded_too_early("buckets", since)
    before = first - 1
    if before >= since and all(_is_accumulated(rank, before) for rank in ranks):
        raise UserError(
            f"the backward pass of iteration {before} exchanges nothing, as in FSDP2's no_sync(), "
            "and such jobs cannot be replayed: record it under another sync"
        )
    _check_passes(ranks, {number for number in common if number >= since})
    return [*range(first, last + 1)]


def _check_passes(ranks: Sequence[_Rank], numbers: Set[int]) -> None:
    """Raise ``UserError`` if steps have several forward passes before a backward pass.

    An iteration begins with each forward pass, so such a step is several iterations, of which only
    the last one reduces anything. Single iterations without, as in an evaluation with gradients,
    are no such steps.
    """
    reduced = {number for number in numbers if any(rank.reduces[number] for rank in ranks)}
    last_parts = {number for number in reduced if number - 1 in numbers - reduced}
    if last_parts and _OFTEN * len(last_parts) >= len(reduced):
        raise UserError(
            f"iteration {max(last_parts) - 1} has a forward pass and exchanges nothing, like "
            "others: a job whose steps have several forward passes before a backward pass cannot "
            "be replayed: record it under another sync"
        )


def _check_buckets(ranks: Sequence[_Rank], numbers: Sequence[int], used: Used) -> None:
    """Raise ``UserError`` if an iteration reduced more or fewer buckets than ``used`` has."""
    expected = sum(used.model.trains(bucket.parameters) for bucket in used.strategy.buckets)
    for rank in ranks:
        for number in numbers:
            if rank.reduces[number] != expected:
                raise UserError(
                    f"rank {rank.rank} reduced {rank.reduces[number]} buckets in iteration "
                    f"{number}, and {expected} of those in strategy.json are trained: record the "
                    "job again"
                )


def _is_accumulated(rank: _Rank, number: int) -> bool:
    """Whether a backward pass of the iteration exchanged nothing."""
    if number not in rank.rows or rank.reduces[number]:
        return False
    return len(rank.of(number, Kind.BACKWARD)) > 0


def _told_by_spans(rank: _Rank, numbers: Sequence[int]) -> Used:
    """A model of the recorded gradients. They fill the buckets in the order of readiness."""
    sizes: dict[str, int] = {}
    forward = rank.of(numbers[-1], Kind.FORWARD)["name"].tolist()
    layers = list(dict.fromkeys(rank.names[name] for name in forward)) or [_ALL]
    place_of = last_places(layers)
    together: list[int] = []
    with_it: dict[str, list[str]] = {}  # whose gradients come together, by the least urgent one
    for name, size_bytes in rank.gradients(numbers[-1])[["name", "size_bytes"]].tolist():
        together.append(layer_of(rank.names[name], place_of))
        if size_bytes:  # the bytes of several are the least urgent one's
            layer = layers[max(together)]
            sizes[layer] = sizes.get(layer, 0) + size_bytes
            with_it.setdefault(layer, []).extend(layers[place] for place in together)
            together.clear()
    bucket_bytes = rank.sizes[numbers[-1]]
    members = [
        list(dict.fromkeys(each for name in names for each in with_it[name]))
        for names in _filled(list(with_it), sizes, bucket_bytes)
    ]
    extra = []
    for number, names in enumerate(members):
        if not names:  # no gradient was recorded
            extra.append(f"bucket {number}")
            sizes[extra[-1]] = bucket_bytes[number]
            members[number] = [extra[-1]]
    parameters = tuple(Parameter(name, sizes.get(name, 0)) for name in (*extra, *layers))
    buckets = tuple(Bucket(tuple(names), number, number) for number, names in enumerate(members))
    strategy = Strategy(DDP, buckets, max(bucket_bytes), fixed=_UNKNOWN)
    return Used(Model(parameters), strategy, numbers[0])


def _filled(
    ready: Sequence[str], sizes: Mapping[str, int], bucket_bytes: Sequence[int]
) -> list[list[str]]:
    """The names in each bucket: each gradient goes where most of its bytes fit."""
    members: list[list[str]] = [[] for _ in bucket_bytes]
    ends = np.cumsum(bucket_bytes)
    before = 0
    for name in ready:
        middle = before + sizes[name] / 2
        before += sizes[name]
        members[min(int(np.searchsorted(ends, middle)), len(ends) - 1)].append(name)
    return members


class _Times:
    """One rank's times. Shapes: I iterations, P parameters, C collectives; ``start_ns`` (I + 1,).

    ``began_ns``, ``ended_ns`` (I, C): times of collectives on the clock, in the order they began.
    """

    def __init__(
        self, rank: _Rank, numbers: Sequence[int], used: Used, clocks: Clocks | None
    ) -> None:
        self._rank = rank
        self._clock = None if clocks is None else clocks.training[rank.rank]
        self._places = last_places(used.model.names)
        self._shards = used.strategy.runtime == FSDP2
        places = used.model.places
        reduced = [each for each in used.strategy.buckets if used.model.trains(each.parameters)]
        buckets = sorted(reduced, key=lambda bucket: bucket.reduce_place)
        self._members = [[places[name] for name in bucket.parameters] for bucket in buckets]
        units = sorted(used.strategy.buckets, key=lambda bucket: bucket.gather_place)
        self._unit_of = {
            places[name]: number for number, unit in enumerate(units) for name in unit.parameters
        }
        trained = [0 if each.frozen else each.size_bytes for each in used.model.parameters]
        self._share = np.array(trained) / max(1, sum(trained))
        shape = (len(numbers), len(used.model))
        collectives = len(rank.sizes[numbers[-1]])
        self.forward_ns = np.zeros(shape, np.int64)
        self.ready_ns = np.zeros(shape, np.int64)
        self.update_ns = np.zeros(shape, np.int64)
        self.between_ns = np.zeros(len(numbers), np.int64)
        self.began_ns = np.zeros((len(numbers), collectives), np.int64)
        self.ended_ns = np.zeros((len(numbers), collectives), np.int64)
        self.start_ns = np.zeros(len(numbers) + 1, np.int64)
        self.begins_ns: list[int] = []
        self.launches_ns: list[int] = []
        self._complete_ns = np.zeros((len(numbers), len(buckets)), np.int64)
        for at, number in enumerate(numbers):
            self._take(at, number)

    def leave_out(self, bucket_ns: int) -> None:
        """Leave out what handing over buckets took from when later gradients were ready."""
        before = (self._complete_ns[:, None, :] < self.ready_ns[:, :, None]).sum(axis=2)
        self.ready_ns = np.maximum(0, self.ready_ns - bucket_ns * before)

    def _take(self, at: int, number: int) -> None:
        rank = self._rank
        (whole,) = rank.of(number, Kind.ITERATION)[["begin_ns", "end_ns"]].tolist()
        self.start_ns[at : at + 2] = whole
        since_ns, next_ns = whole
        collectives = rank.of(number, Kind.COLLECTIVE, "begin_ns")
        self.began_ns[at], self.ended_ns[at] = collectives["begin_ns"], collectives["end_ns"]
        names = [rank.names[name] for name in collectives["name"].tolist()]
        gathers = np.array([self._shards and name.startswith(ALL_GATHER) for name in names])
        there_ns = dict(enumerate(collectives["end_ns"][gathers].tolist()))
        forward = rank.of(number, Kind.FORWARD)
        places, layers_ns = [], []
        for name, begin_ns, until_ns in forward[["name", "begin_ns", "end_ns"]].tolist():
            place = layer_of(rank.names[name], self._places)
            # A unit's first layer waits for its all-gather, and for nothing else.
            there = there_ns.pop(self._unit_of.get(place, -1), 0)
            ran_ns = max(since_ns, min(there, begin_ns))
            places.append(place)
            layers_ns.append(int(self._passed_ns(ran_ns, until_ns)))
            since_ns = until_ns
        is_later = forward["end_ns"] > first_gradient_ns(rank.rows[number])
        self.between_ns[at] = add_forward(self.forward_ns[at], places, layers_ns, is_later)
        self._take_gradients(at, number, since_ns)
        began_ns = np.maximum(0, self._passed_ns(since_ns, collectives["begin_ns"][~gathers]))
        for members, complete_ns in zip(self._members, began_ns.tolist(), strict=True):
            ready_ns = np.minimum(self.ready_ns[at, members], complete_ns)
            ready_ns[np.argmax(ready_ns)] = complete_ns
            self.ready_ns[at, members] = ready_ns
        self._complete_ns[at] = began_ns
        self._take_hand_overs(number, collectives["begin_ns"][~gathers])
        update_ns = max(0, int(self._passed_ns(int(self.ended_ns[at].max()), next_ns)))
        self.update_ns[at] = np.floor(update_ns * self._share)
        self.update_ns[at, 0] += update_ns - self.update_ns[at].sum()

    def _take_hand_overs(self, number: int, began_ns: Int64Array) -> None:
        """Take what the training thread did between the last gradients of buckets and the next."""
        ready_ns = self._rank.gradients(number)["end_ns"]
        last = np.searchsorted(ready_ns, began_ns, side="right") - 1
        for ready, began in zip(ready_ns[last[last >= 0]], began_ns[last >= 0], strict=True):
            self.begins_ns.append(int(self._passed_ns(int(ready), int(began))))
        for name, begin_ns, end_ns in self._rank.of(number, Kind.COMPUTE)[
            ["name", "begin_ns", "end_ns"]
        ].tolist():
            if self._rank.names[name].startswith(HAND_OVER):
                self.launches_ns.append(int(self._passed_ns(begin_ns, end_ns)))

    def _passed_ns(self, since_ns: int, times_ns: npt.ArrayLike) -> Int64Array:
        """What the training thread computed from ``since_ns`` to each of ``times_ns``."""
        if self._clock is None:
            return np.asarray(times_ns, np.int64) - since_ns
        return self._clock.at(times_ns) - self._clock.at(since_ns)

    def _take_gradients(self, at: int, number: int, since_ns: int) -> None:
        """Take the times at which gradients are complete.

        A span without bytes hands nothing over: its gradients come with the next span that does.
        """
        together: list[int] = []
        backward = self._rank.gradients(number)[["name", "end_ns", "size_bytes"]]
        last_ns = int(backward["end_ns"].max()) if len(backward) else since_ns
        self.ready_ns[at] = max(0, int(self._passed_ns(since_ns, last_ns)))
        for name, end_ns, size_bytes in backward.tolist():
            together.append(layer_of(self._rank.names[name], self._places))
            if size_bytes:
                self.ready_ns[at, together] = max(0, int(self._passed_ns(since_ns, end_ns)))
                together.clear()
