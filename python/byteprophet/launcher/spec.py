"""What a job is, and what became of it: plain data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from byteprophet.errors import JobFailed
from byteprophet.network.steps import Step

# Called with a role's name ("worker-0"; with several local ranks, "worker-0.1") and one line of its
# output, without the line's end.
Echo = Callable[[str, str], None]

WEEK_S = 7 * 24 * 3600.0


@dataclass(frozen=True)
class RoleCommands:
    """What the roles that BytePS brings run; the workers run the job's command."""

    scheduler: tuple[str, ...] = (sys.executable, "-c", "import byteps.server")
    server: tuple[str, ...] = (sys.executable, "-c", "import byteps.server")


@dataclass(frozen=True)
class Limits:
    """How long the launcher waits for what, in seconds."""

    grace_s: float = 3.0  # from SIGTERM to SIGKILL
    farewell_s: float = 5.0  # for servers and scheduler to end once all workers have
    premature_s: float = 10.0  # for the other servers and the scheduler to follow one that ended
    last_words_s: float = 4.0  # for workers to save what they have once another role is lost
    stopped_s: float = 6.0  # for heartbeats to name a stopped role first (BYTEPROPHET_DEAD_AFTER_S)


@dataclass(frozen=True)
class JobSpec:
    """A job to run on this machine.

    ``settings`` are the scheduler's, where they differ from its defaults; ``partition_bytes`` None
    means the scheduler's own. ``environment`` is added to this process' environment, and wins over
    everything but what the launcher itself must set. ``directory`` is where workers start.
    A worker is ``local_ranks`` processes, of which one talks to the servers for all. Without
    ``servers``, the job is one of torch.distributed: workers only, each told its rank and where
    rank 0 is as torchrun would, and no ``scheduler``, ``settings`` and ``partition_bytes``.
    ``bandwidth_bps`` limits each worker's link; a worker in ``worker_bandwidth_bps`` (by its index)
    has that rate instead. ``steps`` change the others' while the job runs. All need ``namespaces``,
    which gives each server and worker a host of its own (network.Cluster); without, all share this
    machine's network on ``interface`` (None: loopback).

    ``controller`` starts one for the job (byteprophet.control), which the job survives.
    """

    command: tuple[str, ...]
    run_directory: Path
    workers: int = 2
    local_ranks: int = 1
    servers: int = 1
    scheduler: str = "prophet"
    settings: Mapping[str, int] = field(default_factory=dict)
    partition_bytes: int | None = None
    bandwidth_bps: int | None = None
    worker_bandwidth_bps: Mapping[int, int] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: Path = field(default_factory=Path.cwd)
    namespaces: bool = False
    timeout_s: float = WEEK_S
    port: int | None = None
    interface: str | None = None
    controller: bool = False
    roles: RoleCommands = RoleCommands()
    limits: Limits = Limits()

    @property
    def all_reduce(self) -> bool:
        """Whether the ranks reduce among themselves, without BytePS."""
        return self.servers == 0


@dataclass(frozen=True)
class RoleResult:
    """How one role ended: ``exit_status`` is negative for a signal, as in ``subprocess``.

    ``stopped`` says that the launcher ended it. ``cpu_s`` is user and system time, with the time
    of the processes it started and waited for.
    """

    name: str
    pid: int
    exit_status: int
    cpu_s: float
    stopped: bool


@dataclass(frozen=True)
class JobResult:
    """How a job ended: ``exit_status`` 0, or 1 with one line in ``failed`` that names the cause."""

    exit_status: int
    roles: tuple[RoleResult, ...]
    failed: str | None
    wall_s: float

    def check(self) -> None:
        """Raises JobFailed unless the job is done."""
        if self.failed is not None:
            raise JobFailed(self.failed)
