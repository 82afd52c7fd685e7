"""The collectives of buckets: who takes part, and what they come after and before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.blocks import Spent
from byteprophet.simulate.execute.ranks import Ranks
from byteprophet.simulate.execute.tables import Tables
from byteprophet.simulate.operation.mesh import AXES, Mesh


class BucketCollective(NamedTuple):
    """A collective of a bucket. ``when`` distinguishes those of one bucket."""

    stage: int
    bucket: int
    kind: CollectiveKind
    stream: str
    when: tuple[int, ...]


class Part(NamedTuple):
    """A rank's part in a collective: what it comes after, and what waits for it; -1: nothing."""

    member: int
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
        for collective, parts in self._parts.items():
            self._add(collective, parts)

    def _add(self, collective: BucketCollective, parts: Sequence[Part]) -> None:
        """A collective of all ranks of a stage: one flow per rank, after its group has met."""
        operations = self._ranks.operations
        ranks = self._ranks.of[collective.stage % self._mesh.pp]
        spent = Spent(collective.kind.value)
        wanted = self._tables.wanted(collective.stage, collective.bucket, collective.kind)
        for axes, transfer in wanted:
            for group in self._groups(axes, parts):
                meeting = operations.add(0) if len(group) > 1 else -1
                for part in group:
                    flow = self._ranks.flow(ranks[part.member], collective.stream, transfer)
                    operations.depend(part.after, meeting if meeting >= 0 else flow)
                    operations.depend(meeting, flow)
                    operations.depend(flow, part.before)
                    record = ranks[part.member].record
                    if part.before >= 0:
                        record.wait(part.before, flow, spent)
                    else:
                        record.synchronised.append((flow, spent))

    def _groups(self, axes: tuple[str, ...], parts: Sequence[Part]) -> list[list[Part]]:
        """The parts of each group along ``axes``."""
        found: dict[tuple[int, ...], list[Part]] = defaultdict(list)
        for part in parts:
            place, fixed = part.member, []
            for axis in AXES[:-1]:
                place, at = divmod(place, self._mesh.sizes[axis])
                if axis not in axes:
                    fixed.append(at)
            found[tuple(fixed)].append(part)
        return list(found.values())
