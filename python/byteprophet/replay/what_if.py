"""The changes to a recorded job, and their valid ranges."""

from __future__ import annotations

from dataclasses import dataclass

from byteprophet.errors import UserError
from byteprophet.job import Cluster
from byteprophet.network import payload_bps
from byteprophet.network.namespaces import PAYLOAD_BURST_BYTES
from byteprophet.schedulers import MAX_PARTITION_BYTES

RANGES = {
    "bandwidth_bps": (0, 2**40),
    "partition_bytes": (1, MAX_PARTITION_BYTES),
    "workers": (1, 1024),
    "servers": (1, 1024),
    "compute_scale": (1e-6, 1e6),
    "link_latency_ns": (0, 3_600_000_000_000),
    "bucket_bytes": (1, 2**40),
}


@dataclass(frozen=True)
class Changes:
    """What differs from the recorded job. None means as recorded.

    ``bandwidth_bps`` is the configured rate of each worker's link per direction; 0 means not
    limited. ``link_latency_ns`` is one-way. A new ``scheduler`` uses its own default settings and
    partition size. ``runtime`` and ``bucket_bytes`` are for jobs without servers. Raises
    ``UserError`` if a value is out of its range.
    """

    bandwidth_bps: int | None = None
    scheduler: str | None = None
    partition_bytes: int | None = None
    workers: int | None = None
    servers: int | None = None
    compute_scale: float | None = None
    link_latency_ns: int | None = None
    runtime: str | None = None
    bucket_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                said = name.replace("_", " ")
                raise UserError(f"{said} {value}: must be from {least:g} to {most:g}")


def limited(cluster: Cluster, bandwidth_bps: int) -> Cluster:
    """``cluster`` whose workers' links our limiter limits to ``bandwidth_bps``; 0: not at all."""
    rate_bps = payload_bps(bandwidth_bps or None) or 0
    return cluster.with_rate(rate_bps, PAYLOAD_BURST_BYTES if rate_bps else 0)
