"""The environment variables that make a process a role of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# All that only the launcher decides. Left over from another job in the caller's shell they would
# send a role to the wrong place, so they go, and then some are set anew. PORT is one of them:
# ps-lite would have every role of the job listen on it.
_OWNED = frozenset(
    {
        "BYTEPROPHET_CONTROLLER",
        "BYTEPROPHET_CONTROLLER_KEYS",
        "BYTEPROPHET_ROLE",
        "BYTEPROPHET_RUN",
        "BYTEPROPHET_SETTINGS",
        "BYTEPROPHET_STEP_UPDATES",
        "BYTEPS_FORCE_DISTRIBUTED",
        "BYTEPS_GLOBAL_RANK",
        "BYTEPS_LOCAL_RANK",
        "BYTEPS_LOCAL_SIZE",
        "BYTEPS_PARTITION_BYTES",
        "BYTEPS_SCHEDULER",
        "BYTEPS_SOCKET_PATH",
        "DMLC_INTERFACE",
        "DMLC_NODE_HOST",
        "DMLC_NUM_SERVER",
        "DMLC_NUM_WORKER",
        "DMLC_PS_ROOT_PORT",
        "DMLC_PS_ROOT_URI",
        "DMLC_ROLE",
        "DMLC_WORKER_ID",
        "PORT",
    }
)
# One thread per role: several roles share this machine's cores, and pools that each think that
# all of them are theirs spend their time on taking them from each other.
_DEFAULTS = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
_TOLD = ("BYTEPS_", "BYTEPROPHET_", "DMLC_", "PS_", "OMP_")


@dataclass(frozen=True)
class RoleName:
    """Which role: kind is scheduler, server, worker or controller; index counts within the kind.

    The local ranks of a worker have its index: ``worker-1.0``, ``worker-1.1``.
    """

    kind: str
    index: int
    name: str
    local_rank: int = 0

    @property
    def host(self) -> str:
        """The name of the host it is on, which the local ranks of a worker share.

        The controller is on the scheduler role's: everybody can reach it, no link of it is limited.
        """
        return "scheduler" if self.kind == "controller" else self.name.partition(".")[0]


@dataclass(frozen=True)
class JobFacts:
    """What all roles of one job are told: ``settings_text`` is "name=value,...".

    Without servers, ``root_address`` is rank 0's, and nothing is said of BytePS (``ranks.py``).
    """

    root_address: str
    root_port: int
    workers: int
    servers: int
    scheduler: str | None  # None: BytePS as shipped
    settings_text: str
    partition_bytes: int
    run_directory: str
    local_ranks: int = 1  # per worker
    controller: str | None = None  # its address; None: there is none
    controller_keys: str = ""  # the directory
    step_updates: str = ""  # at which rank 0 of a paced job tells the launcher (network.steps)


def base_environment(caller: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment and what the job adds, without what the launcher decides."""
    merged = {**_DEFAULTS, **caller, **added}
    return {name: value for name, value in merged.items() if name not in _OWNED}


def told_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The part of ``base`` that belongs in a run's record: variables of BytePS and its kind."""
    return {name: value for name, value in sorted(base.items()) if name.startswith(_TOLD)}


def role_environment(
    base: Mapping[str, str], facts: JobFacts, role: RoleName, address: str, socket_path: str
) -> dict[str, str]:
    """The whole environment of ``role``; all local ranks of a worker share ``socket_path``."""
    environment = {
        **base,
        "DMLC_ROLE": role.kind,
        "DMLC_PS_ROOT_URI": facts.root_address,
        "DMLC_PS_ROOT_PORT": str(facts.root_port),
        "DMLC_NUM_WORKER": str(facts.workers),
        "DMLC_NUM_SERVER": str(facts.servers),
        "DMLC_NODE_HOST": address,
        "BYTEPS_FORCE_DISTRIBUTED": "1",
        "BYTEPS_PARTITION_BYTES": str(facts.partition_bytes),
        "BYTEPROPHET_ROLE": role.name,
        "BYTEPROPHET_RUN": facts.run_directory,
    }
    if facts.scheduler is not None:
        environment["BYTEPS_SCHEDULER"] = facts.scheduler
        environment["BYTEPROPHET_SETTINGS"] = facts.settings_text
    if facts.controller is not None and role.kind in ("worker", "controller"):
        environment["BYTEPROPHET_CONTROLLER"] = facts.controller
        environment["BYTEPROPHET_CONTROLLER_KEYS"] = facts.controller_keys
        environment.setdefault("BYTEPROPHET_MONITOR", "1")  # whose bandwidths it plans with
    if role.kind == "worker":
        environment["DMLC_WORKER_ID"] = str(role.index)
        environment["BYTEPS_LOCAL_RANK"] = str(role.local_rank)
        environment["BYTEPS_LOCAL_SIZE"] = str(facts.local_ranks)
        # All on one: BytePS would see two in 16 ranks and sum wrongly between them.
        environment["BYTEPS_PCIE_SWITCH_SIZE"] = str(facts.local_ranks)
        environment["BYTEPS_SOCKET_PATH"] = socket_path
        if facts.step_updates:
            environment["BYTEPROPHET_STEP_UPDATES"] = facts.step_updates
    return environment
