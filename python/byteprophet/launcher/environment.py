"""The environment variables that make a process a role of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MESH_KEY = "BYTEPROPHET_MESH_KEY"
"""A secret of the job's ranks."""
SAID_OTHERWISE = {"BYTEPS_SCHEDULER": "scheduler", "BYTEPROPHET_SETTINGS": "settings"}
"""Variables that choose a policy for roles started by hand, and the fields of a job instead."""
# Variables that only the launcher decides. If the caller's shell had them from another job, they
# would send a role to the wrong place. So all are removed, and then some are set again. PORT is one
# of them, because ps-lite would make every role of the job listen on it.
_OWNED = frozenset(
    {
        *SAID_OTHERWISE,
        "BYTEPROPHET_CONTROLLER",
        "BYTEPROPHET_CONTROLLER_KEYS",
        MESH_KEY,
        "BYTEPROPHET_RESTART",
        "BYTEPROPHET_ROLE",
        "BYTEPROPHET_RUN",
        "BYTEPROPHET_SHARED_MEMORY",
        "BYTEPROPHET_STEP_UPDATES",
        "BYTEPS_FORCE_DISTRIBUTED",
        "BYTEPS_GLOBAL_RANK",
        "BYTEPS_LOCAL_RANK",
        "BYTEPS_LOCAL_SIZE",
        "BYTEPS_PARTITION_BYTES",
        "BYTEPS_SOCKET_PATH",
        "DMLC_INTERFACE",
        "DMLC_NODE_HOST",
        "DMLC_NUM_SERVER",
        "DMLC_NUM_WORKER",
        "DMLC_PS_ROOT_PORT",
        "DMLC_PS_ROOT_URI",
        "DMLC_ROLE",
        "DMLC_SERVER_ID",
        "DMLC_WORKER_ID",
        "PORT",
    }
)
# One thread per role: several roles share this machine's cores. If each role had a thread pool as
# large as the machine, the pools would slow one another down.
_DEFAULTS = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
RESTART = "BYTEPROPHET_RESTART"
"""How many times the job was started again, for scripts that go on from a checkpoint."""
_TOLD = ("BYTEPS_", "BYTEPROPHET_", "DMLC_", "PS_", "OMP_")


@dataclass(frozen=True)
class RoleName:
    """A role. ``kind`` is scheduler, server, worker or controller; ``index`` counts within a kind.

    The local ranks of a worker have the same index: ``worker-1.0``, ``worker-1.1``.
    """

    kind: str
    index: int
    name: str
    local_rank: int = 0

    @property
    def host(self) -> str:
        """The name of the role's host. The local ranks of a worker share one.

        The controller is on the scheduler's host, which all roles can reach and whose link is not
        limited.
        """
        return "scheduler" if self.kind == "controller" else self.name.partition(".")[0]


@dataclass(frozen=True)
class JobFacts:
    """The data that all roles of a job get. ``settings_text`` is "name=value,...".

    Without servers, ``root_address`` is rank 0's, and BytePS' variables are not set (``ranks.py``).
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
    step_updates: str = ""  # updates that rank 0 of a paced job announces (network.steps)
    restart: int = 0  # how many times the job was started again
    max_restarts: int = 0
    mesh_key: str = ""  # which only ranks of torch.distributed know; "": none
    memory_name: str = ""  # in the names of a worker's shared memory; "": nothing


def base_environment(caller: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``given_environment``, and defaults."""
    return {**_DEFAULTS, **given_environment(caller, added)}


def given_environment(caller: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables and those that the job adds, without those the launcher decides."""
    merged = {**caller, **added}
    return {name: value for name, value in merged.items() if name not in _OWNED}


def told_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The variables in ``base`` that a run's config.toml records, e.g. those of BytePS."""
    return {name: value for name, value in sorted(base.items()) if name.startswith(_TOLD)}


def role_environment(
    base: Mapping[str, str], facts: JobFacts, role: RoleName, address: str, socket_path: str
) -> dict[str, str]:
    """The complete environment of ``role``. A worker's local ranks share ``socket_path``."""
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
        RESTART: str(facts.restart),
    }
    if facts.scheduler is not None:
        environment["BYTEPS_SCHEDULER"] = facts.scheduler
        environment["BYTEPROPHET_SETTINGS"] = facts.settings_text
    if facts.controller is not None and role.kind in ("worker", "controller"):
        environment["BYTEPROPHET_CONTROLLER"] = facts.controller
        environment["BYTEPROPHET_CONTROLLER_KEYS"] = facts.controller_keys
    if role.kind == "server":
        environment["DMLC_SERVER_ID"] = str(role.index)
    if role.kind == "worker":
        environment["DMLC_WORKER_ID"] = str(role.index)
        environment["BYTEPS_LOCAL_RANK"] = str(role.local_rank)
        environment["BYTEPS_LOCAL_SIZE"] = str(facts.local_ranks)
        # All ranks count as on one switch. By default, BytePS assumes two for 16 ranks and sums
        # wrongly between them.
        environment["BYTEPS_PCIE_SWITCH_SIZE"] = str(facts.local_ranks)
        environment["BYTEPS_SOCKET_PATH"] = socket_path
        environment["BYTEPROPHET_SHARED_MEMORY"] = facts.memory_name
        if facts.step_updates:
            environment["BYTEPROPHET_STEP_UPDATES"] = facts.step_updates
    return environment
