"""The environment variables that make a process a rank of torch.distributed, as torchrun's."""

from __future__ import annotations

from collections.abc import Mapping

from byteprophet.launcher.environment import JobFacts, RoleName

# What torchrun tells the processes that it starts: a job started from one of these is another job.
_OF_TORCHRUN = ("TORCHELASTIC_", "GROUP_", "ROLE_")
_OF_BYTEPS = ("BYTEPS_", "DMLC_")
# Else PyTorch warns at every connection that a host of namespaces has no name.
_DEFAULTS = {"TORCH_CPP_LOG_LEVEL": "ERROR"}


def rank_environment(
    base: Mapping[str, str], facts: JobFacts, role: RoleName, interface: str
) -> dict[str, str]:
    """The whole environment of ``role``, a worker. ``interface``: the one that gloo uses."""
    others = {n: v for n, v in base.items() if not n.startswith(_OF_TORCHRUN + _OF_BYTEPS)}
    environment = {
        **_DEFAULTS,
        **others,
        "RANK": str(role.index * facts.local_ranks + role.local_rank),
        "WORLD_SIZE": str(facts.workers * facts.local_ranks),
        "LOCAL_RANK": str(role.local_rank),
        "LOCAL_WORLD_SIZE": str(facts.local_ranks),
        "MASTER_ADDR": facts.root_address,
        "MASTER_PORT": str(facts.root_port),
        "GLOO_SOCKET_IFNAME": interface,
        "BYTEPROPHET_ROLE": role.name,
        "BYTEPROPHET_RUN": facts.run_directory,
    }
    if facts.step_updates:
        environment["BYTEPROPHET_STEP_UPDATES"] = facts.step_updates
    return environment
