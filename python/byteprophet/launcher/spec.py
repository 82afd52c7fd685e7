"""The specification of a job and its result, as plain data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from byteprophet.errors import JobFailed
from byteprophet.network.steps import Step

# Called with a role's name ("worker-0"; with several local ranks, "worker-0.1") and one line of its
# output, without the line's end. A thread calls it that calls nothing else (shown.py). If
# it never returns, it must not hold what the end of Python needs, as print does: sys.stdout's lock.
Echo = Callable[[str, str], None]

WEEK_S = 7 * 24 * 3600.0
GRACE_S = 3.0
"""How long processes may take to end after SIGTERM, unless the user says otherwise."""


@dataclass(frozen=True)
class RoleCommands:
    """The commands of BytePS' scheduler and servers. The workers run the job's command."""

    scheduler: tuple[str, ...] = (sys.executable, "-c", "import byteps.server")
    server: tuple[str, ...] = (sys.executable, "-c", "import byteps.server")


@dataclass(frozen=True)
class Limits:
    """The launcher's waiting times, in seconds."""

    grace_s: float = GRACE_S  # from SIGTERM to SIGKILL
    farewell_s: float = 5.0  # for servers and scheduler to end after all workers
    premature_s: float = 10.0  # for the other servers and the scheduler to follow one that ended
    last_words_s: float = 4.0  # for workers to save their data after another role is lost
    stopped_s: float = 6.0  # for heartbeats to name a stopped role first (BYTEPROPHET_DEAD_AFTER_S)


@dataclass(frozen=True)
class JobSpec:
    """A job to run on this machine.

    ``settings`` are the scheduler's settings that differ from its defaults. ``partition_bytes``
    None means the scheduler's default. ``environment`` is added to this process' environment and
    overrides it, except for variables that the launcher sets. Workers start in ``directory``.

    A worker has ``local_ranks`` processes, one of which talks to the servers for all. Without
    ``servers``, the job uses torch.distributed: it has only workers, which get their rank and the
    address of rank 0 as from torchrun, and no ``scheduler``, ``settings`` or ``partition_bytes``.

    ``bandwidth_bps`` limits each worker's link. A worker in ``worker_bandwidth_bps`` (by its index)
    has that rate instead. ``steps`` change the rates of the other workers while the job runs.
    ``server_bandwidth_bps`` limits the links of single servers (by their index). All four need
    ``namespaces``, which gives each server and worker its own host (network.Cluster).
    Without ``namespaces``, all roles share this machine's network on ``interface`` (None:
    loopback).

    ``controller`` starts a controller for the job (byteprophet.control). The job goes on if the
    controller ends. ``ranks``: the workers of a job with servers also get what those of a job
    without get, for scripts that join torch.distributed themselves. ``forks``: workers are forked
    from a process that has imported torch, if that is equivalent to starting them
    (``fork_server``). If set, BYTEPROPHET_FORK_SERVER decides.

    ``restart``: how many times the job has been started again before this start, of at most
    ``max_restarts`` (restarts.py). Workers read it in their environment.
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
    server_bandwidth_bps: Mapping[int, int] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: Path = field(default_factory=Path.cwd)
    namespaces: bool = False
    timeout_s: float = WEEK_S
    restart: int = 0
    max_restarts: int = 0
    port: int | None = None
    interface: str | None = None
    controller: bool = False
    ranks: bool = False
    forks: bool = False
    roles: RoleCommands = RoleCommands()
    limits: Limits = Limits()

    @property
    def all_reduce(self) -> bool:
        """Whether the ranks all-reduce among themselves, without BytePS."""
        return self.servers == 0


@dataclass(frozen=True)
class RoleResult:
    """The result of one role. ``exit_status`` is negative for a signal, as in ``subprocess``.

    ``stopped``: the launcher ended it. ``cpu_s`` is its user and system time, including processes
    that it started and waited for.
    """

    name: str
    pid: int
    exit_status: int
    cpu_s: float
    stopped: bool


@dataclass(frozen=True)
class JobResult:
    """The result of a job. ``exit_status`` is 0, or 1 with the cause as one line in ``failed``.

    ``restarts``: how many times it had been started again. ``wall_s`` is of the last start only.
    """

    exit_status: int
    roles: tuple[RoleResult, ...]
    failed: str | None
    wall_s: float
    restarts: int = 0

    def check(self) -> None:
        """Raises ``JobFailed`` if the job failed."""
        if self.failed is not None:
            raise JobFailed(self.failed)
