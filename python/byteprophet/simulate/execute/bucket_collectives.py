"""The collectives of buckets: who takes part, and what they come after and before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.blocks import Spent
from byteprophet.simulate.execute.meetings import groups_along
from byteprophet.simulate.execute.ranks import Rank, Ranks
from byteprophet.simulate.execute.tables import Tables
from byteprophet.simulate.operation.mesh import Mesh


class BucketCollective(NamedTuple):
    """A collective of a bucket. ``when`` distinguishes those of one bucket."""

    stage: int
    bucket: int
    kind: CollectiveKind
    stream: str
    when: tuple[int, ...]


class Part(NamedTuple):
    """A rank's part in a collective: what it comes after, and what waits for it; -1: nothing."""

    rank: Rank
    after: int
    before: int


class BucketCollectives:
    """Collects the parts of all ranks, and adds the collectives when all have joined."""

    def __init__(self, ranks: Ranks, tables: Tables, mesh: Mesh) -> None:
        self._ranks = ranks
        self._tables = tables
        self._mesh = mesh
        self._parts: dict[BucketCollective, list[Part]] = defaultdict(list)

    def join(self, collective: BucketCollective, part: Part) -> None:
        """Take part in a collective."""
        self._parts[collective].append(part)

    def add(self) -> None:
        """Add all collectives to the graph."""
        alike = self._tables.strategy.zero == 0
        streams = self._tables.costs.cluster.network.collectives_at_once if alike else 1
        for number, (collective, parts) in enumerate(self._parts.items()):
            stream = f"{collective.stream} {number % streams}" if streams > 1 else collective.stream
            self._add(collective, parts, stream)

    def _add(self, collective: BucketCollective, parts: Sequence[Part], stream: str) -> None:
        """A collective of all ranks of a stage: one flow per rank, after its group has met."""
        operations = self._ranks.operations
        spent = Spent(collective.kind.value)
        wanted = self._tables.wanted(collective.stage, collective.bucket, collective.kind)
        for axes, transfer in wanted:
            for group in groups_along(self._mesh, axes, parts, lambda part: part.rank.member):
                meeting = operations.add(0) if len(group) > 1 else -1
                for part in group:
                    flow = self._ranks.flow(part.rank, stream, transfer)
                    operations.depend(part.after, meeting if meeting >= 0 else flow)
                    operations.depend(meeting, flow)
                    operations.depend(flow, part.before)
                    record = part.rank.record
                    if part.before >= 0:
                        record.wait(part.before, flow, spent)
                    else:
                        record.synchronised.append((flow, spent))
