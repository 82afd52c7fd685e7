"""Processor time from spans: what is measured is what the recorded job had been given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from small_jobs import random_job, with_runtime

from byteprophet.graph.labels import Kind as Label
from byteprophet.graph.mesh_graph import MeshGraph, build
from byteprophet.job import Cluster, Host, Job, Processors
from byteprophet.job.cluster import Compressing
from byteprophet.job.compression import Compressed, OneBit, flat_form
from byteprophet.job.owners import Owners
from byteprophet.job.strategy import ALL_REDUCE, with_compressed
from byteprophet.job.strategy_file import Used
from byteprophet.measure.collectives import (
    ALL_GATHER,
    REDUCE_SCATTER,
    arrivals_of,
    measure_collectives,
)
from byteprophet.measure.processors import AVERAGING, COMPRESSING, Arrivals, Clocks, Use
from byteprophet.network.namespaces import PAYLOAD_BURST_BYTES
from byteprophet.network.rate import PAYLOAD_SHARE
from byteprophet.replay import Replayed, replay
from byteprophet.replay.all_reduce import ALL_REDUCE as ALL_REDUCE_KIND
from byteprophet.timeline.events import Events, Origin
from byteprophet.timeline.tables import SPAN, SPANS, Kind

from .recorded_gloo import EPOCH_NS, config_of

MS = 1_000_000
NS_PER_BYTE = 1.5
_Span = tuple[int, int, str, int, int, int, int]
"""Kind, iteration, name, begin, end, bytes, lane."""


def on_cores(cores: float, seed: int = 1) -> tuple[Job, Use]:
    """Two ranks on one machine, under all-reduce in a few buckets."""
    one = with_runtime(random_job(seed, 10), ALL_REDUCE, 1_000_000)
    use = Use((Processors((0, 1), cores),), NS_PER_BYTE)
    costs = replace(one.cluster.costs, processor_ns_per_byte=NS_PER_BYTE)
    cluster = replace(one.cluster, costs=costs, processors=use.machines)
    return replace(one, cluster=cluster), use


def record(one: Job) -> list[Events]:
    """The spans of each rank, had ``one`` run as its graph replays."""
    built = build(one)
    replayed = replay(built.graph)
    return [events_of([*_spans(one, built, replayed, rank)], rank) for rank in range(one.workers)]


def events_of(spans: Sequence[_Span], rank: int) -> Events:
    names = {name: index for index, name in enumerate(dict.fromkeys(span[2] for span in spans))}
    rows = np.zeros(len(spans), SPAN)
    for row, (kind, iteration, name, begin_ns, end_ns, size_bytes, lane) in zip(
        rows, spans, strict=True
    ):
        row["kind"], row["iteration"], row["name"] = kind, iteration, names[name]
        row["begin_ns"], row["end_ns"] = EPOCH_NS + begin_ns, EPOCH_NS + end_ns
        row["size_bytes"], row["lane"] = size_bytes, lane
    texts = {index: name for name, index in names.items()}
    return Events(SPANS, Origin(f"worker-{rank}", rank), rows, texts)


def _spans(one: Job, built: MeshGraph, replayed: Replayed, rank: int) -> Iterator[_Span]:
    start_ns, end_ns, labels = replayed.start_ns, replayed.end_ns, built.graph.labels
    names, sizes = one.model.names, one.model.sizes_bytes
    for iteration in range(one.iterations):
        at, number = (rank, iteration), iteration + 1
        free_ns = int(start_ns[built.begin[at]])
        yield Kind.ITERATION, number, "iteration", free_ns, int(end_ns[built.end[at]]), 0, 0
        for name, operation in zip(names, built.forward[at].tolist(), strict=True):
            begin_ns = int(start_ns[operation])
            if begin_ns > free_ns:
                yield Kind.WAIT, number, name, free_ns, begin_ns, 0, 0
            free_ns = int(end_ns[operation])
            yield Kind.FORWARD, number, name, begin_ns, free_ns, 0, 0
        mine = (labels.rank == rank) & (labels.iteration == iteration) & (labels.tensor >= 0)
        for operation in np.flatnonzero(mine & (labels.kind == Label.BACKWARD)).tolist():
            place = int(labels.tensor[operation])
            until_ns = int(end_ns[operation])
            yield Kind.BACKWARD, number, names[place], free_ns, until_ns, sizes[place], 0
            free_ns = until_ns
        for name, operation in zip(names, built.update[at].tolist(), strict=True):
            times_ns = int(start_ns[operation]), int(end_ns[operation])
            yield Kind.UPDATE, number, name, *times_ns, 0, 1
        yield from _compressed(one, built, replayed, rank, iteration)
        for place, bucket in enumerate(one.strategy.buckets):
            size_bytes = sum(sizes[one.model.places[name]] for name in bucket.parameters)
            begin_ns, middle_ns, until_ns = (
                int(end_ns[each[at]][place])
                for each in (built.start, built.averaged, built.gathered)
            )
            lane = 2 + place
            yield (
                Kind.COLLECTIVE,
                number,
                f"{REDUCE_SCATTER}1.{place}",
                begin_ns,
                middle_ns,
                size_bytes,
                lane,
            )
            yield (
                Kind.COLLECTIVE,
                number,
                f"{ALL_GATHER}1.{place}",
                middle_ns,
                until_ns,
                size_bytes,
                lane,
            )


def _compressed(
    one: Job, built: MeshGraph, replayed: Replayed, rank: int, iteration: int
) -> Iterator[_Span]:
    """Spans of compressed gradients, whose forms are all-gathered."""
    start_ns, end_ns, labels = replayed.start_ns, replayed.end_ns, built.graph.labels
    first = len(one.strategy.buckets)
    for number, (name, compressor) in enumerate(one.strategy.compressor_of.items()):
        mine = (labels.rank == rank) & (labels.iteration == iteration)
        mine &= (labels.kind == Label.COMPRESSION) & (
            labels.tensor == len(one.model) + first + number
        )
        before, after = np.flatnonzero(mine).tolist()
        for what, each in ((COMPRESSING, before), (AVERAGING, after)):
            times_ns = int(start_ns[each]), int(end_ns[each])
            yield Kind.COMPUTE, iteration + 1, f"{what} {name}", *times_ns, 0, 90
        size_bytes = one.model.sizes_bytes[one.model.places[name]]
        forms_bytes = one.workers * flat_form(compressor, size_bytes).size_bytes
        times_ns = int(end_ns[before]), int(end_ns[built.gathered[rank, iteration, first + number]])
        label = f"{compressor.type} ({name})"
        yield Kind.COLLECTIVE, iteration + 1, label, *times_ns, forms_bytes, 91 + number


@pytest.mark.parametrize("cores", [1.0, 64.0])
def test_a_compressed_job_is_measured_and_replayed_as_it_was(cores: float) -> None:
    """Compressing is measured as it is used: on shared cores, in processor time."""
    plain, use = on_cores(cores, 2)
    name = plain.model.names[int(np.argmax(plain.model.sizes_bytes))]
    strategy = with_compressed(plain.strategy, (Compressed((name,), OneBit()),))
    took = (Compressing(name, 6 * MS, 4 * MS),)
    costs = replace(plain.cluster.costs, compressing=took, message_cost_ns=0)
    hosts = tuple(replace(each, burst_bytes=PAYLOAD_BURST_BYTES) for each in plain.cluster.workers)
    cluster = replace(plain.cluster, workers=hosts, costs=costs)
    job = replace(plain, strategy=strategy, cluster=cluster)
    recorded, used = record(job), Used(job.model, job.strategy, 1)
    limit_bps = round(job.cluster.workers[0].up_bps / PAYLOAD_SHARE)
    config = {**config_of(job), "bandwidth_bps": limit_bps}
    wall, starts_ns = measure_collectives(recorded, config, used)
    found, _ = measure_collectives(recorded, config, used, use)
    (measured,), (by_wall,) = found.cluster.costs.compressing, wall.cluster.costs.compressing
    assert measured.before_ns == pytest.approx(6 * MS, rel=0.06)
    assert measured.after_ns == pytest.approx(4 * MS, rel=0.06)
    if cores < 2:
        assert by_wall.before_ns > 1.3 * measured.before_ns
    iterations_ns = np.diff(starts_ns.max(axis=0))[1:]
    for each, error in ((wall, 0.002), (found, 0.02)):
        again_ns = ALL_REDUCE_KIND.iterations_ns(each)[1:]
        assert np.median(again_ns) == pytest.approx(np.median(iterations_ns), rel=error)


@pytest.mark.parametrize("seed", range(4))
def test_times_are_those_of_the_job(seed: int) -> None:
    """On one core for two ranks, iterations are far longer, and yet the times come back."""
    job, use = on_cores(1.0, seed)
    recorded, used = record(job), Used(job.model, job.strategy, 1)
    wall, starts_ns = measure_collectives(recorded, config_of(job), used)
    found, _ = measure_collectives(recorded, config_of(job), used, use)
    assert found.cluster.processors == use.machines
    assert np.diff(starts_ns, axis=1).mean() > 1.5 * _computing_ns(job)
    assert _computing_ns(found) == pytest.approx(_computing_ns(job), rel=0.06)
    assert _computing_ns(wall) > 1.3 * _computing_ns(job)


def _computing_ns(job: Job) -> float:
    times = job.times
    return float((times.forward_ns.sum(axis=2) + times.backward_ns).mean())


def clock_between(events: list[Events], arrivals: list[Arrivals], use: Use, rank: int) -> int:
    """The processor time of a rank's training thread from 0 to 10 ms."""
    begin_ns, end_ns = EPOCH_NS, EPOCH_NS + 10 * MS
    (worked_ns,) = (
        Clocks(events, [(each,) for each in arrivals], use)
        .training[rank]
        .worked_ns([begin_ns, end_ns])
    )
    return int(worked_ns)


NOTHING = Arrivals(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


@pytest.mark.parametrize(("cores", "expected_ms"), [(2, 10.0), (1, 5.0), (1.5, 7.5)])
def test_threads_divide_cores(cores: float, expected_ms: float) -> None:
    events = [events_of([(Kind.FORWARD, 1, "x", 0, 10 * MS, 0, 0)], rank) for rank in range(2)]
    use = Use((Processors((0, 1), cores),), 1.0)
    assert clock_between(events, [NOTHING, NOTHING], use, 0) == pytest.approx(expected_ms * MS)


def test_a_thread_that_waits_leaves_its_core() -> None:
    """Rank 1 waits half of the time; the union of two overlapping waits counts once."""
    busy = events_of([(Kind.FORWARD, 1, "x", 0, 10 * MS, 0, 0)], 0)
    waits = events_of(
        [
            (Kind.FORWARD, 1, "x", 0, 10 * MS, 0, 0),
            (Kind.WAIT, 1, "x", 0, 4 * MS, 0, 0),
            (Kind.WAIT, 1, "y", 2 * MS, 5 * MS, 0, 0),
        ],
        1,
    )
    use = Use((Processors((0, 1), 1),), 1.0)
    none = [NOTHING, NOTHING]
    assert clock_between([busy, waits], none, use, 0) == pytest.approx(7.5 * MS)
    assert clock_between([busy, waits], none, use, 1) == pytest.approx(2.5 * MS)


def test_messages_take_their_part() -> None:
    """1 MB arrives in 10 ms at 3 ns of processor time per byte: 0.3 of one core, 0.7 are left."""
    busy = events_of([(Kind.FORWARD, 1, "x", 0, 10 * MS, 0, 0)], 0)
    arrives = Arrivals(np.array([EPOCH_NS]), np.array([EPOCH_NS + 10 * MS]), np.array([1e6]))
    use = Use((Processors((0,), 1),), 3.0)
    assert clock_between([busy], [arrives], use, 0) == pytest.approx(7 * MS)


def test_messages_take_processor_time_beside_their_bytes() -> None:
    """Two collectives of two messages, each of which takes 0.5 ms beside its 1 ns per byte."""
    busy = events_of([(Kind.FORWARD, 1, "x", 0, 10 * MS, 0, 0)], 0)
    begins = EPOCH_NS + np.array([0, 6 * MS])
    arrives = Arrivals(begins, begins + 4 * MS, np.array([1e6, 0.0]), 2)
    use = Use((Processors((0,), 1),), 1.0, MS // 2)
    assert clock_between([busy], [arrives], use, 0) == pytest.approx((10 - 2 - 1) * MS)


def test_a_link_keeps_its_limit_beside_others_without_one() -> None:
    cluster = Cluster((Host(200_000_000, 200_000_000),) * 2)
    use = Use((Processors((0, 1), 2),), NS_PER_BYTE)
    free, limited = use.on(cluster, [None, 200_000_000]).workers
    assert free.up_bps == free.down_bps == round(2 * 8e9 / NS_PER_BYTE)
    assert limited == cluster.workers[1]


def test_updaters_have_clocks_of_their_own() -> None:
    """What the training thread updates itself is on its own clock."""
    rows = [
        (Kind.FORWARD, 1, "x", 0, 10 * MS, 0, 0),
        (Kind.UPDATE, 1, "x", 2 * MS, 6 * MS, 0, 1),
        (Kind.UPDATE, 1, "y", 7 * MS, 8 * MS, 0, 0),
    ]
    use = Use((Processors((0,), 1),), 0.0)
    clocks = Clocks([events_of(rows, 0)], [(NOTHING,)], use)
    whole = [EPOCH_NS, EPOCH_NS + 10 * MS]
    assert clocks.training[0].worked_ns(whole)[0] == pytest.approx(8 * MS)
    assert clocks.updating[0].worked_ns(whole)[0] == pytest.approx(2 * MS)


def test_what_a_rank_does_not_own_arrives_with_the_averages_only() -> None:
    """Its reduce-scatters are over at once, as it has nothing to sum."""
    half, other = (1, f"{REDUCE_SCATTER}0.0"), (1, f"{ALL_GATHER}0.0")
    owner = {half: (10, 90, 600), other: (40, 95, 600)}
    alone = {half: (20, 21, 600), other: (21, 120, 600)}
    found = arrivals_of([owner, owner, alone], Owners((1, 1, 0)))
    assert found[0].size_bytes.tolist() == [600, 300]  # two others' parts of its 300; a half
    assert found[0].begin_ns.tolist() == [20, 40]
    assert found[2].size_bytes.tolist() == [600]
    assert found[2].end_ns.tolist() == [120]
