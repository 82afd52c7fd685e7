"""How ranks of one job differ: some are slower than others.

Ranks of a tensor-, context- or expert-parallel group wait for each other in every layer, so the
slowest of them sets the pace of all. Data-parallel ranks meet for gradients only. So a job has as
many kinds of replicas as there are different ones, and one of each kind is simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp
from random import Random

from byteprophet.errors import UserError
from byteprophet.simulate.operation.mesh import Mesh


@dataclass(frozen=True)
class Conditions:
    """What ranks are like.

    Attributes:
        stragglers: for some ranks, how many times as long their kernels take.
        jitter: the spread of such a factor over all ranks: the standard deviation of its logarithm.
        seed: of that.
    """

    stragglers: Mapping[int, float] = field(default_factory=dict)
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ``UserError`` for factors that cannot be."""
        for rank, factor in self.stragglers.items():
            if not 1 <= factor <= 1000:
                raise UserError(f"straggler {rank}={factor:g}: must be from 1 to 1000")
        if not 0 <= self.jitter <= 1:
            raise UserError(f"jitter {self.jitter:g}: must be from 0 to 1")

    def replicas(self, mesh: Mesh) -> Replicas:
        """The different replicas of a job.

        Raises:
            UserError: a straggler is not among its ranks.
        """
        for rank in self.stragglers:
            if not 0 <= rank < mesh.ranks:
                raise UserError(f"straggler {rank}: there are only ranks 0 to {mesh.ranks - 1}")
        if not self.stragglers and not self.jitter:
            return ONE_REPLICA
        stride, per_stage = mesh.stride("dp"), mesh.ranks // mesh.pp
        random = Random(self.seed)
        factors = [
            exp(random.gauss(0, self.jitter)) * self.stragglers.get(rank, 1.0)
            for rank in range(mesh.ranks)
        ]
        found: dict[tuple[float, ...], int] = {}
        for first in range(0, per_stage, stride):
            places = range(first, mesh.ranks, per_stage)
            found.setdefault(tuple(max(factors[at : at + stride]) for at in places), first)
        return Replicas({first: slowest for slowest, first in found.items()})


@dataclass(frozen=True)
class Replicas:
    """One replica of each kind.

    ``factors``: by the number of its first rank among those of a pipeline rank, how many times as
    long kernels take on each pipeline rank; empty: as long.
    """

    factors: Mapping[int, tuple[float, ...]]

    @property
    def members(self) -> list[int]:
        """The numbers of their first ranks."""
        return list(self.factors)

    def factor(self, member: int, pp_rank: int) -> float:
        """How many times as long the kernels of a rank take."""
        factors = self.factors.get(member, ())
        return factors[pp_rank] if factors else 1.0


ALIKE = Conditions()
"""All ranks are alike."""
ONE_REPLICA = Replicas({0: ()})
"""One replica stands for all, and its kernels take as long as they should."""
