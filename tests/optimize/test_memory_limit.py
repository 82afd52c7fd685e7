"""A limit of memory: what fits, and the cheapest repair of what does not, against all mixes."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.job import Bucket, Cluster, Host, Job, Model, Parameter, Policy, Strategy, Times
from byteprophet.job.region_costs import ModeCost, RegionCost, RegionCosts
from byteprophet.job.region_memory import ParameterMemory, Phases, RegionMemory
from byteprophet.job.strategy import EAGER, RECOMPUTED, Region
from byteprophet.measure.run import Run
from byteprophet.optimize.by_parameter import ByParameter
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.learning import learn
from byteprophet.optimize.memory_limit import MemoryLimit
from byteprophet.optimize.passes.recompute import Recompute
from byteprophet.optimize.passes.runtime import Runtime
from byteprophet.optimize.search import search

_MS = 1_000_000
UNITS = tuple((f"block{number}",) for number in range(4))
NAMES = tuple(f"{unit[0]}.weight" for unit in UNITS)
MODEL = Model(tuple(Parameter(name, 4000) for name in NAMES))


def made(seed: int) -> tuple[Job, RegionMemory, RegionCosts]:
    """A job of four units whose activations and times are drawn; the first cannot be recomputed."""
    lot = random.Random(seed)
    kept = np.array([lot.randrange(1_000, 100_000) for _ in UNITS])
    own = np.arange(8) >> 1 & 1
    lives = np.where(own, 10, kept[:, None])
    owner = np.array([*range(4), *reversed(range(4))])
    phases = Phases(
        64_000,
        owner,
        np.concatenate([np.broadcast_to(kept[:, None], (4, 8)), kept[::-1, None] * own]),
        np.concatenate([lives, -lives[::-1]]),
    )
    parameters = {
        name: ParameterMemory(1000, 4000, 8000, 4000, place + 1, 7 - place)
        for place, name in enumerate(NAMES)
    }
    forward_ns = [lot.randrange(1, 20) * _MS for _ in UNITS]
    regions = {}
    for place, unit in enumerate(UNITS):
        eager = ModeCost(forward_ns[place], 2 * forward_ns[place], (2 * forward_ns[place],))
        again = ModeCost(forward_ns[place], 3 * forward_ns[place], (3 * forward_ns[place],))
        modes = {EAGER: eager, RECOMPUTED: again} if place else {EAGER: eager}
        regions[unit] = RegionCost((NAMES[place],), modes, {})
    ready = np.cumsum([2 * each for each in reversed(forward_ns)])[::-1]
    times = Times(
        np.tile(np.array(forward_ns), (2, 4, 1)),
        np.tile(ready, (2, 4, 1)),
        np.full((2, 4), ready[0]),
        np.ones((2, 4, 4), dtype=np.int64),
    )
    buckets = tuple(Bucket((name,), 3 - n, n, sharded=True) for n, name in enumerate(NAMES))
    cluster = Cluster((Host(10**9, 10**9),) * 2)
    job = Job(MODEL, times, cluster, Strategy("dear", buckets))
    return (
        job,
        RegionMemory(UNITS, phases, parameters, 0, True),
        RegionCosts(((("",),), UNITS), regions),
    )


def with_mix(job: Job, mix: tuple[int, ...]) -> Job:
    regions = tuple(
        Region(unit, recomputed=True) for unit, state in zip(UNITS, mix, strict=True) if state
    )
    return replace(job, strategy=replace(job.strategy, regions=regions))


def limited(seed: int, budget_bytes: int) -> tuple[Job, MemoryLimit, RegionCosts]:
    job, memory, costs = made(seed)
    limit = MemoryLimit(memory, budget_bytes)
    limit.learn(job, costs)
    return job, limit, costs


def test_buffers_that_gradients_share_are_memory_too() -> None:
    """With servers, the two gradients in the middle travel in a buffer, which lives on."""
    alone, memory, costs = made(3)
    cluster = Cluster(alone.cluster.workers, alone.cluster.workers[:1])
    alone = replace(
        alone,
        strategy=Strategy(partition_bytes=65536),
        policy=Policy("fifo", {}),
        cluster=cluster,
    )
    members = (NAMES[:1], NAMES[1:3], NAMES[3:])
    texts = (NAMES[0], "block1.weight and 1 more", NAMES[3])
    model = Model(tuple(map(Parameter, texts, (4000, 8000, 4000))))
    first = np.array([0, 1, 3])
    times = Times(
        np.add.reduceat(alone.times.forward_ns, first, axis=2),
        np.maximum.reduceat(alone.times.ready_ns, first, axis=2),
        alone.times.backward_ns,
        alone.times.update_ns[..., first],
    )
    shared = replace(alone, model=model, times=times)

    def peak_bytes(job: Job, parameters: ByParameter) -> int:
        limit = MemoryLimit(memory, 10**9)
        limit.learn(job, costs, parameters)
        return limit.peak_bytes(with_mix(job, (0, 1, 0, 1)))

    was = peak_bytes(alone, ByParameter.alone(alone))
    now = peak_bytes(shared, ByParameter.sharing(shared, members, MODEL, alone.times))
    assert now - was == 8000


def test_buckets_of_the_script_live_whatever_exchanges_gradients() -> None:
    """Those of DistributedDataParallel; under its own exchange, they are the runtime's."""
    job, memory, costs = made(3)
    torch = replace(job, strategy=replace(job.strategy, runtime="ddp"))

    def peak_bytes(of: Job, reducer_bytes: int) -> int:
        limit = MemoryLimit(replace(memory, reducer_bytes=reducer_bytes), 10**9)
        limit.learn(of, costs)
        return limit.peak_bytes(of)

    assert peak_bytes(job, 16_000) == peak_bytes(job, 0) + 16_000
    assert peak_bytes(torch, 16_000) == peak_bytes(torch, 0)


@pytest.mark.parametrize("seed", range(20))
def test_the_repair_is_the_cheapest_mix_that_fits(seed: int) -> None:
    job, limit, costs = limited(seed, 1)
    mixes = [mix for mix in itertools.product((0, 1), repeat=4) if not mix[0]]
    peaks = {mix: limit.peak_bytes(with_mix(job, mix)) for mix in mixes}
    extra_ns = {
        mix: sum(
            costs.regions[unit].modes[RECOMPUTED].both_ns - costs.regions[unit].modes[EAGER].both_ns
            for unit, state in zip(UNITS, mix, strict=True)
            if state
        )
        for mix in mixes
    }
    assert limit.least_bytes(job) == min(peaks.values())
    for budget_bytes in sorted(peaks.values()):
        job, limit, _ = limited(seed, budget_bytes)
        repair = limit.repaired(job)
        assert repair is not None
        assert repair.by == "recompute"
        chosen = {region.modules for region in repair.move.job.strategy.regions}
        mix = tuple(int(unit in chosen) for unit in UNITS)
        assert limit.fits(repair.move.job)
        assert peaks[mix] <= budget_bytes
        assert extra_ns[mix] == min(extra_ns[each] for each in mixes if peaks[each] <= budget_bytes)
    job, limit, _ = limited(seed, min(peaks.values()) - 1)
    assert limit.repaired(job) is None
    assert f"takes at least {min(peaks.values())} bytes" in limit.why_not(job)


def test_what_a_rank_keeps_besides_counts() -> None:
    """Two ranks: half of the state is the other's; what it sends is here at any time."""
    job, limit, _ = limited(1, 1)
    alone = replace(job, strategy=Strategy("allreduce", tuple(
        replace(bucket, sharded=False) for bucket in job.strategy.buckets
    )))  # fmt: skip
    assert limit.peak_bytes(alone) - limit.peak_bytes(job) == 4 * 8000 // 2


def test_the_owner_of_most_decides() -> None:
    """It keeps more of the state, and both halves of a bucket that goes in chunks may be here."""
    job, limit, _ = limited(1, 1)
    for owners in ((1, 3), (3, 1)):
        uneven = replace(job, strategy=replace(job.strategy, owners=owners))
        state, received = 8000 * (3 / 4 - 1 / 2), 4000 * (3 / 4 + 1 / 4) - 4000 / 2
        assert limit.peak_bytes(uneven) - limit.peak_bytes(job) == 4 * (state + received)


def test_an_optimizer_that_needs_whole_parameters_keeps_all_state_on_every_rank() -> None:
    job, memory, costs = made(1)
    limit = MemoryLimit(replace(memory, shardable=False), 1)
    limit.learn(job, costs)
    whole = tuple(replace(bucket, sharded=False) for bucket in job.strategy.buckets)
    alone = replace(job, strategy=replace(job.strategy, buckets=whole))
    assert limit.peak_bytes(job) == limit.peak_bytes(alone)


def test_what_is_not_known_does_not_fit() -> None:
    job, limit, _ = limited(1, 10**12)
    assert limit.fits(job)
    for strategy in (
        replace(job.strategy, runtime="wfbp"),
        replace(job.strategy, autocast=True),
        replace(job.strategy, regions=(Region(UNITS[1], compiled=True),)),
        replace(job.strategy, regions=(Region(("other",), recomputed=True),)),
    ):
        other = replace(job, strategy=strategy)
        assert not limit.fits(other)
        with pytest.raises(UserError, match="is not known"):
            limit.peak_bytes(other)
    wfbp = replace(job, strategy=replace(job.strategy, runtime="wfbp"))
    assert limit.repaired(wfbp) is None
    assert "is not known, so it cannot be limited" in limit.why_not(wfbp)


@pytest.mark.parametrize(
    ("runtime", "said"),
    [("fsdp2", "record the script under another sync"), ("wfbp", "2 workers.* is not known")],
)
def test_a_job_whose_memory_is_not_measured_is_refused_before_it_runs_again(
    tmp_path: Path, runtime: str, said: str
) -> None:
    job, _, _ = limited(1, 1)
    job = replace(job, strategy=replace(job.strategy, runtime=runtime))
    with pytest.raises(UserError, match=f"--memory-budget: .*{said}"):
        learn(
            [(Run(tmp_path), job)],
            [],
            asked=False,
            budget_bytes=1 << 30,
            directory=tmp_path,
            say=lambda _: None,
        )
    assert list(tmp_path.iterdir()) == []


def sharded(job: Job) -> Job:
    """The job under FSDP2, three times as fast."""
    times = job.times
    faster = replace(
        times,
        forward_ns=times.forward_ns // 3,
        ready_ns=times.ready_ns // 3,
        backward_ns=times.backward_ns // 3,
    )
    strategy = replace(job.strategy, runtime="fsdp2", regions=())
    return replace(job, times=faster, strategy=strategy)


def test_fsdp2_is_chosen_where_nothing_else_fits() -> None:
    job, limit, _ = limited(2, 1)
    least = limit.least_bytes(job)
    job, limit, _ = limited(2, least - 1)
    assert limit.repaired(job) is None
    assert f"at least {least} bytes" in limit.why_not(job)
    moved = sharded(job)
    assert not limit.knows(moved)
    limit.learn_sharded(moved, least)
    assert limit.repaired(job) is None
    assert f"or by FSDP2, where it takes {least}; the budget is" in limit.why_not(job)
    limit.learn_sharded(moved, least - 10)
    assert f"at least {least - 10} bytes" in limit.why_not(job)
    repair = limit.repaired(job)
    assert repair is not None
    assert (repair.by, repair.move.job) == ("runtime", moved)
    assert limit.peak_bytes(moved) == least - 10
    recomputed = replace(moved.strategy, regions=(Region(UNITS[1], recomputed=True),))
    assert not limit.fits(replace(moved, strategy=recomputed))
    found = search(job, [], budget_s=0.2, limit=limit)
    assert found.best.job == moved
    assert [each.by for each in found.best.decisions] == ["runtime"]


def test_a_repaired_job_keeps_the_settings_of_its_policy() -> None:
    """Also if one with other settings was repaired before."""
    job, memory, costs = made(2)
    cluster = Cluster(job.cluster.workers, job.cluster.workers[:1])
    job = replace(
        job,
        strategy=Strategy(partition_bytes=65536),
        policy=Policy("bytescheduler", {"credit_bytes": 1 << 20}),
        cluster=cluster,
    )
    limit = MemoryLimit(memory, 10**9)
    limit.learn(job, costs)
    other = replace(job, policy=Policy("bytescheduler", {"credit_bytes": 1 << 22}))
    for each in (job, other):
        repair = limit.repaired(each)
        assert repair is not None
        assert repair.move.job.policy == each.policy


def test_fsdp2_is_chosen_where_it_fits_and_is_faster() -> None:
    job, limit, _ = limited(2, 1)
    plain, least = limit.peak_bytes(job), limit.least_bytes(job)
    job, limit, costs = limited(2, (plain + least) // 2)
    moved = sharded(job)
    limit.learn_sharded(moved, least)
    recompute, runtime = Recompute(), Runtime()
    recompute.learn(job, costs)
    assert limit.repaired(job) is not None
    runtime.learn_other(moved)
    found = search(job, [recompute, runtime], budget_s=0.5, limit=limit)
    assert found.best.job == moved


@pytest.mark.parametrize("seed", range(5))
def test_a_search_stays_within_the_limit_and_finds_the_fastest_mix(seed: int) -> None:
    job, limit, _ = limited(seed, 1)
    plain = limit.peak_bytes(job)
    budget_bytes = (plain + limit.least_bytes(job)) // 2
    job, limit, costs = limited(seed, budget_bytes)
    one = Recompute()
    one.learn(job, costs)
    found = search(job, [one], budget_s=0.5, limit=limit)
    assert found.start_fits == limit.fits(job)
    assert not found.start_fits
    assert limit.fits(found.best.job)
    assert found.best.decisions[0].by == "recompute"
    assert found.families[0].iteration_ns <= found.best.iteration_ns
    evaluate = Evaluator()
    possible = [with_mix(job, mix) for mix in itertools.product((0, 1), repeat=4) if not mix[0]]
    made_jobs = [one.with_regions(job, each.strategy.regions) for each in possible]
    times_ns = [evaluate(each).iteration_ns for each in made_jobs if each and limit.fits(each)]
    assert found.best.iteration_ns <= min(times_ns) * 1.001
