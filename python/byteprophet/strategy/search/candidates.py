"""The candidates of a search: strategies of builders and of good routings, with predictions.

Every candidate is replayed as ``byteprophet strategy explain`` replays it, of one transport or of
two. The routes' engine (``engine.py``) only proposes routings: it knows no frames, windows or lags.
All predictions are scaled by the error of the recorded job's own replay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from byteprophet.allreduce.strategies import strategy_for
from byteprophet.bound import bound_ns
from byteprophet.errors import UserError
from byteprophet.graph.mesh_transfers import FRAME_BYTES
from byteprophet.job import Job
from byteprophet.job.owners import Owners
from byteprophet.job.partitions import partitions_of_job
from byteprophet.job.strategy import BYTEPS, DEAR_PLANNED, MIXED, OURS
from byteprophet.job.transports import served
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.replay.all_reduce import with_strategy
from byteprophet.strategy.builders import BUILDERS, build
from byteprophet.strategy.compressed import compressed
from byteprophet.strategy.hand_builders import HAND
from byteprophet.strategy.mixed import served_fraction, with_routes
from byteprophet.strategy.routed import on_its_share
from byteprophet.strategy.search.bases import Bases
from byteprophet.strategy.search.engine import RouteEngine, Routing
from byteprophet.strategy.search.ranker import Floats
from byteprophet.strategy.search.units import Units
from byteprophet.strategy.shares import bound_of_all_ns

BUILDER, ROUTING, RECORDED = "builder", "routing", "as recorded"

ALLOW = "--allow"
"""The option whose rules let a search compress gradients."""


@dataclass(frozen=True)
class Candidate:
    """A strategy that may be the result.

    Attributes:
        name: what tables and files call it.
        job: the job under it.
        digest: that of its strategy file.
        engine_ns: the predicted time of an iteration.
        features: what the ranker looks at (``features_of``).
        by: ``BUILDER``, ``ROUTING``, or ``RECORDED`` if the job ran under it when it was recorded.
        is_by_hand: whether its builder is one of ``HAND``.
    """

    name: str
    job: Job
    digest: str
    engine_ns: int
    features: tuple[float, ...]
    by: str = BUILDER
    is_by_hand: bool = False


class Predictor:
    """Makes candidates of jobs and routings, and predicts them. Not thread safe.

    ``engine`` is that of routes; its job has the servers, or none if the resources have none.
    ``allowed``: rules by which the user lets gradients travel compressed; none: as they are.
    """

    def __init__(self, bases: Bases, allowed: Sequence[str] = ()) -> None:
        self.bases = bases
        self._allowed = allowed
        self.job = bases.mesh if bases.routed is None else bases.routed
        self.engine = RouteEngine(self.job, Units.of(self.job.model))
        self.bound_ns = bound_of_all_ns(bases.mesh, bases.servers)
        if allowed:
            self.bound_ns = min(self.bound_ns, bound_ns(compressed(bases.mesh, allowed, ALLOW)))
        self._evaluate = Evaluator(folds=False)  # as `explain`: nothing confirms a folded replay
        self._scale = 1 / (1 + bases.replay_error)

    def of_builders(self, say: Callable[[str], None]) -> Iterator[Candidate]:
        """The recorded strategy, if it fits, and those of all builders that know such a job.

        ``say`` is told of builders that do not.
        """
        if self.bases.fits_recorded:
            yield self.baseline()
        for name, builder in BUILDERS.items():
            base = self._base(name)
            if base is None or base.strategy.runtime not in builder.runtimes:
                continue
            try:
                job = build(name, base)
            except UserError as error:
                say(f"without {name}: {error}")
                continue
            yield self.candidate(name, job, is_by_hand=name in HAND)

    def _base(self, name: str) -> Job | None:
        """The job from which the builder ``name`` starts; None: the resources do not allow it."""
        if BUILDERS[name].adds_servers:
            return self.bases.routed
        return self.bases.served if BYTEPS in BUILDERS[name].runtimes else self.bases.mesh

    def baseline(self) -> Candidate:
        """What runs beside the candidates of a trial, predicted."""
        return self.candidate(RECORDED, self.bases.baseline, RECORDED)

    def candidate(
        self, name: str, job: Job, by: str = BUILDER, is_by_hand: bool = False
    ) -> Candidate:
        """``job``, predicted."""
        return Candidate(
            name,
            job,
            self.bases.used(job).digest,
            self.predicted_ns(job),
            features_of(job),
            by,
            is_by_hand,
        )

    def of_routing(self, name: str, routing: Routing, paced: bool = False) -> Candidate:
        """The strategy of a routing. Raises ``UserError`` if its routes cannot be used."""
        return self.candidate(name, self.job_of(routing, paced), ROUTING)

    def job_of(self, routing: Routing, paced: bool = False) -> Job:
        """The job under ``routing``: of one transport, if all units go one way.

        ``paced``: if of two, the mesh leaves servers their share of the link (``mixed.py``).
        """
        if not routing.served.any():
            return _with_owners(self.bases.mesh, routing.owners)
        if routing.served.all():
            assert self.bases.served is not None
            return build("partitioned-ps", self.bases.served)
        units = self.engine.units
        fraction = units.fraction(routing.served)
        routes = units.routes(routing.served)
        return with_routes(self.job, routes, fraction, paced, routing.owners)

    def compressed(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """Those of ``candidates`` without servers, with the compressors that are allowed."""
        if not self._allowed:
            return
        for each in candidates:
            if each.job.strategy.runtime in OURS:
                job = compressed(each.job, self._allowed, ALLOW)
                yield self.candidate(f"{each.name}, compressed", job, each.by)

    def predicted_ns(self, job: Job) -> int:
        """The predicted time of an iteration of ``job``, one of the bases' variants."""
        if job.strategy.runtime == MIXED:
            job = on_its_share(job)
        return round(self._evaluate(job).iteration_ns * self._scale)


def _with_owners(mesh: Job, owners: Owners) -> Job:
    asked = replace(mesh, strategy=replace(mesh.strategy, owners=owners.unequal))
    return with_strategy(asked, strategy_for(asked, DEAR_PLANNED))


FEATURES = ("servers", "mixed", "fraction", "messages", "skew", "compressed", "paced")
"""What the ranker looks at: whether a strategy has servers only, whether it has both transports,
the part of all bytes that servers sum, the logarithm of the number of messages, how much more than
an equal part the largest owner owns, whether gradients are compressed, and whether the mesh is
paced."""


def features_of(job: Job) -> tuple[float, ...]:
    """The features of ``job``, as ``FEATURES`` names them."""
    strategy = job.strategy
    fraction = {BYTEPS: 1.0, MIXED: served_fraction(job)}.get(strategy.runtime, 0.0)
    messages = 0
    if strategy.runtime == BYTEPS:
        messages += 2 * len(partitions_of_job(job).size_bytes)
    elif strategy.runtime == MIXED:
        messages += 2 * len(partitions_of_job(served(job).job).size_bytes)
    if strategy.buckets:
        frames = (1 - fraction) * job.model.size_bytes / FRAME_BYTES
        messages += 2 * (job.workers - 1) * max(len(strategy.buckets), round(frames / job.workers))
    shares = Owners.of(strategy.owners, job.workers).shares
    skew = float(max(shares)) * job.workers - 1 if strategy.runtime != BYTEPS else 0.0
    return (
        float(strategy.runtime == BYTEPS),
        float(strategy.runtime == MIXED),
        fraction,
        math.log1p(messages),
        skew,
        float(bool(strategy.compressors)),
        float(strategy.mesh_bps > 0),
    )


def table_of(candidates: Sequence[Candidate]) -> Floats:
    """The features of candidates, shape (candidates, features)."""
    return np.array([each.features for each in candidates], np.float64)


def distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    """``candidates`` without those whose strategy was there before, the fastest first."""
    found: dict[str, Candidate] = {}
    for each in candidates:
        found.setdefault(each.digest, each)
    return sorted(found.values(), key=lambda each: (each.engine_ns, each.name))
