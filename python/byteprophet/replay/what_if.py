"""What is to be different about a recorded job, and what all kinds of jobs do with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from byteprophet.errors import UserError
from byteprophet.schedulers import MAX_PARTITION_BYTES

RANGES = {
    "bandwidth_bps": (0, 2**40),
    "partition_bytes": (1, MAX_PARTITION_BYTES),
    "workers": (1, 1024),
    "servers": (1, 1024),
    "compute_scale": (1e-6, 1e6),
    "link_latency_ns": (0, 3_600_000_000_000),
}

Times = TypeVar("Times")  # a dataclass of arrays of nanoseconds, by worker first


@dataclass(frozen=True)
class Changes:
    """What is different; None: as recorded.

    ``bandwidth_bps``: what each worker's link is configured to, per direction; 0: not limited.
    ``link_latency_ns``: one way. ``scheduler`` comes with its own default settings and partition
    size.
    """

    bandwidth_bps: int | None = None
    scheduler: str | None = None
    partition_bytes: int | None = None
    workers: int | None = None
    servers: int | None = None
    compute_scale: float | None = None
    link_latency_ns: int | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                said = name.replace("_", " ")
                raise UserError(f"{said} {value}: must be from {least:g} to {most:g}")


def scaled(times: Times, factor: float | None) -> Times:
    """All of them ``factor`` times as long."""
    if factor is None:
        return times
    return _each(times, lambda times_ns: np.rint(times_ns * factor).astype(np.int64))


def of_workers(times: Times, workers: int, recorded: int) -> Times:
    """Those of the first ``workers`` workers; past the recorded ones: the same again.

    A worker that is there twice would never be late or early against itself, so its iterations
    are taken in another order the second time.
    """
    return _each(
        times,
        lambda times_ns: np.stack(
            [np.roll(times_ns[n % recorded], n // recorded, axis=0) for n in range(workers)]
        ),
    )


def _each(times: Times, change: Callable[[Any], Any]) -> Times:
    return type(times)(**{name: change(times_ns) for name, times_ns in vars(times).items()})
