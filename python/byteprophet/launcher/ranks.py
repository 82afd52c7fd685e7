"""The environment variables that make a process a rank of torch.distributed, as with torchrun."""

from __future__ import annotations

from collections.abc import Mapping

from byteprophet.launcher.environment import MESH_KEY, RESTART, JobFacts, RoleName

# Variables that torchrun sets. A job started from one of torchrun's processes is a separate job.
_OF_TORCHRUN = ("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")
_OF_TORCHELASTIC = "TORCHELASTIC_"
_OF_BYTEPS = ("BYTEPS_", "DMLC_")
# Without this, PyTorch warns at every connection that a host in namespaces has no name.
_DEFAULTS = {"TORCH_CPP_LOG_LEVEL": "ERROR"}


def rank_environment(
    base: Mapping[str, str], facts: JobFacts, role: RoleName, interface: str
) -> dict[str, str]:
    """The complete environment of ``role``, a worker. ``interface`` is the one that gloo uses."""
    others = {n: v for n, v in base.items() if not n.startswith(_OF_BYTEPS)}
    environment = {
        **with_rank(others, facts, role, interface, facts.root_address, facts.root_port),
        "BYTEPROPHET_ROLE": role.name,
        "BYTEPROPHET_RUN": facts.run_directory,
        RESTART: str(facts.restart),
    }
    if facts.step_updates:
        environment["BYTEPROPHET_STEP_UPDATES"] = facts.step_updates
    return environment


def with_rank(
    base: Mapping[str, str],
    facts: JobFacts,
    role: RoleName,
    interface: str,
    address: str,
    port: int,
) -> dict[str, str]:
    """``base`` with the variables of torch.distributed; rank 0 listens on ``port``."""
    others = {
        name: value
        for name, value in base.items()
        if name not in _OF_TORCHRUN and not name.startswith(_OF_TORCHELASTIC)
    }
    if facts.mesh_key:
        others[MESH_KEY] = facts.mesh_key
    return {
        **_DEFAULTS,
        **others,
        "RANK": str(role.index * facts.local_ranks + role.local_rank),
        "WORLD_SIZE": str(facts.workers * facts.local_ranks),
        "LOCAL_RANK": str(role.local_rank),
        "LOCAL_WORLD_SIZE": str(facts.local_ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": interface,
        # Scripts for torchrun read these, and nothing else takes them for a sign of torchrun.
        "TORCHELASTIC_RESTART_COUNT": str(facts.restart),
        "TORCHELASTIC_MAX_RESTARTS": str(facts.max_restarts),
    }
