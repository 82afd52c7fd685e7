"""A small job as its graph is replayed, whose roles are on machines with clocks that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from byteprophet import schedulers
from byteprophet.job import Costs, Job, Times
from byteprophet.timeline.clocks import on_one_clock
from byteprophet.timeline.events import Events

from ..measure.recorded_replay import record
from ..measure.server_jobs import cluster_of, server_job
from .true_clocks import TrueClock

MS = 1_000_000
DELAY_NS = 150_000
UNIX_NS = 1_700_000_000 * 10**9
SIZES = (2_000, 300_000, 800, 40_000, 600, 1_500, 700_000, 512, 3_000, 256, 1_000, 4_000)
"""Bytes; each of two servers has some small ones."""


def small_job(workers: int = 2, servers: int = 2, seed: int = 0) -> Job:
    """Four iterations of twelve layers, of about 90 ms each, under fifo."""
    noise = np.random.default_rng(seed)
    shape = (workers, 4, len(SIZES))
    settings, partition_bytes = schedulers.resolve("fifo", {})
    ready_ns = np.sort(noise.integers(0, 30 * MS, shape), axis=2)[..., ::-1]
    times = Times(
        forward_ns=noise.integers(MS, 4 * MS, shape),
        ready_ns=ready_ns,
        backward_ns=ready_ns.max(axis=2) + MS,
        update_ns=noise.integers(0, MS, shape),
    )
    names = tuple(f"layer{n}.weight" for n in range(len(SIZES)))
    costs = Costs(message_cost_ns=20_000, delay_ns=DELAY_NS, sum_ns_per_byte=0.5)
    cluster = cluster_of((500 * MS,) * workers, (0,) * servers, costs)
    return server_job(names, SIZES, times, cluster, "fifo", partition_bytes, settings)


def recorded(job: Job) -> list[Events]:
    """What its roles leave where all of them have one clock, and machines of their own."""
    events, _, _ = record(job)
    one = events[0].origin
    return [
        replace(
            table,
            origin=replace(
                table.origin,
                machine=f"machine of {table.origin.role}",
                monotonic_ns=one.monotonic_ns,
                unix_ns=one.monotonic_ns + UNIX_NS,
            ),
        )
        for table in events
    ]


def with_clocks(events: Sequence[Events], clocks: Mapping[str, TrueClock]) -> list[Events]:
    """The events as written by roles with ``clocks``, by name; wall clocks are right."""
    written = on_one_clock(events, lambda origin, times: clocks[origin.role].shows(times))
    return [
        replace(
            table,
            origin=replace(
                table.origin,
                monotonic_ns=int(
                    clocks[table.origin.role].shows(np.array([table.origin.monotonic_ns]))[0]
                ),
            ),
        )
        for table in written
    ]


def on_machine(events: Sequence[Events], role: str, machine: str) -> list[Events]:
    """The events, those of ``role`` from ``machine``."""
    return [
        replace(table, origin=replace(table.origin, machine=machine))
        if table.origin.role == role
        else table
        for table in events
    ]


def set_in_mid_run(events: list[Events], role: str, by_ns: int) -> list[Events]:
    """The clock of ``role`` is set forward in the second half of its events."""
    changed = []
    for table in events:
        rows = table.rows.copy()
        middle_ns = np.median(np.concatenate([rows[name] for name in table.table.times]))
        for name in table.table.times if table.origin.role == role else ():
            rows[name][rows[name] > middle_ns] += by_ns
        changed.append(replace(table, rows=rows))
    return changed
