"""A training job."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from byteprophet.job.cluster import Cluster
from byteprophet.job.compression import flat_form
from byteprophet.job.model import Model
from byteprophet.job.policy import Policy
from byteprophet.job.strategy import (
    BYTEPS,
    FSDP2,
    MESH,
    MIXED,
    OURS,
    SERVERS,
    SHARDED,
    TORCH,
    Strategy,
)
from byteprophet.job.times import Times


@dataclass(frozen=True)
class Job:
    """What is trained, how long it computes, on what, and how gradients are exchanged.

    ``policy`` is None where there are no servers. ``ValueError`` where the parts do not fit.
    """

    model: Model
    times: Times
    cluster: Cluster
    strategy: Strategy
    policy: Policy | None = None

    def __post_init__(self) -> None:
        if self.times.workers != len(self.cluster.workers):
            raise ValueError(
                f"times of {self.times.workers} workers for a cluster of "
                f"{len(self.cluster.workers)}"
            )
        if self.times.forward_ns.shape[2] != len(self.model):
            raise ValueError(
                f"times of {self.times.forward_ns.shape[2]} parameters for a model of "
                f"{len(self.model)}"
            )
        if (self.strategy.runtime in (BYTEPS, MIXED)) != (self.policy is not None):
            raise ValueError(f"runtime {self.strategy.runtime!r} with policy {self.policy!r}")

    @property
    def push_policy(self) -> Policy:
        """The policy of a job with servers. ``ValueError`` for a job without."""
        if self.policy is None:
            raise ValueError(f"runtime {self.strategy.runtime!r} has no push policy")
        return self.policy

    @cached_property
    def wire_bytes(self) -> tuple[int, ...]:
        """The sizes in which the gradients travel, in forward order; 0 for a frozen parameter.

        A compressed gradient counts as an all-reduce that moves as much: of P ranks' forms of b
        bytes, all-gathered, every rank sends (P - 1) b, and so b P / 2 count. Raises ``ValueError``
        if a form depends on the shape of a gradient.
        """
        sizes_bytes = tuple(0 if each.frozen else each.size_bytes for each in self.model.parameters)
        if self.strategy.reduce_dtype:
            return tuple(size_bytes // 2 for size_bytes in sizes_bytes)
        own = self.strategy.compressor_of
        if not own:
            return sizes_bytes
        return tuple(
            flat_form(own[name], size).as_all_reduced(self.workers) if name in own else size
            for name, size in zip(self.model.names, sizes_bytes, strict=True)
        )

    @property
    def decided(self) -> Hashable:
        """Equal for jobs with the same strategy, the same policy and the same settings of it."""
        policy = self.policy
        if policy is None:
            return self.strategy
        return self.strategy, policy.name, tuple(sorted(policy.settings.items()))

    @property
    def workers(self) -> int:
        """The number of workers (ranks)."""
        return len(self.cluster.workers)

    @property
    def transport(self) -> str:
        """What carries its gradients. Messages of another transport have other costs."""
        if self.policy is not None:
            return SERVERS
        if self.strategy.runtime == FSDP2:
            return SHARDED
        return MESH if self.strategy.runtime in OURS else TORCH

    @property
    def servers(self) -> int:
        """The number of servers."""
        return len(self.cluster.servers)

    @property
    def iterations(self) -> int:
        """The number of iterations that ``times`` has."""
        return self.times.iterations

    @property
    def title(self) -> str:
        """A short description for people."""
        if self.policy is not None:
            mesh = f"{self.strategy.mesh} and " * bool(self.strategy.routes)
            return f"{mesh}{self.policy.name}, {self.workers} workers, {self.servers} server(s)"
        buckets = len(self.strategy.buckets)
        return f"{self.strategy.runtime}, {self.workers} workers, {buckets} bucket(s)"
