"""What a bench compares: cases (one row of the result each) and how long each is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from byteprophet.errors import UserError
from byteprophet.network import Step

WARMUP_ITERATIONS = 5
"""Before anything is measured: the first creates the keys on the server, the second still runs
barriered because the order is not agreed, then policies that learn have seen some iterations."""


@dataclass(frozen=True)
class Case:
    """One workload under one scheduler on one kind of link.

    ``workload`` is a built-in name or a path, ``bandwidth_bps`` of each worker's link per direction
    (None: not limited), which ``steps`` change in mid-run. ``settings`` and ``partition_bytes``
    override the scheduler's own; ``environment`` is added to all roles'.
    """

    workload: str
    scheduler: str
    bandwidth_bps: int | None
    workers: int = 2
    servers: int = 1
    compute_ns: int | None = None
    partition_bytes: int | None = None
    settings: Mapping[str, int] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """The cases, and the measured iterations of each, split evenly over ``rounds`` jobs.

    In each round all cases run once, in order, so that what changes on the machine meanwhile meets
    all of them. All jobs make the same number of updates, so their parameters can be compared.
    ``record``: every transfer is saved in the run directories.
    """

    cases: tuple[Case, ...]
    iterations: int
    rounds: int = 2
    warmup_iterations: int = WARMUP_ITERATIONS
    record: bool = False

    def __post_init__(self) -> None:
        if not self.cases:
            raise UserError("bench: nothing to compare")
        if self.iterations < 1:
            raise UserError(f"--iterations {self.iterations}: must be at least 1")
        if not 1 <= self.rounds <= self.iterations:
            raise UserError(f"--rounds {self.rounds}: must be from 1 to --iterations")

    @property
    def iterations_per_job(self) -> int:
        """Measured iterations of one job; rounded up, so a bench never measures less than asked."""
        return -(-self.iterations // self.rounds)

    @property
    def updates(self) -> int:
        """Parameter updates that one job makes, warm-up included."""
        return self.warmup_iterations + self.iterations_per_job
