"""The graph of one iteration of a program.

Every rank has a GPU, links to its node and to the network, and a connection per stream of
collectives, as NCCL has. The GPU does the actions of its schedule in order. An action is one
operation, or several if collectives of data parallelism start or must be complete in between. The
collectives that operators wait for are a part of their action's time.

Folding: the ranks of one pipeline rank are alike. They do the same at the same time, and have links
of their own. So one of them stands for all, and the result is the same to the nanosecond. Unfolded
graphs have all ranks, which meet for each collective, and one operation per block. They are for
tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from byteprophet.graph import Graph
from byteprophet.simulate.compile.program import Program
from byteprophet.simulate.compile.schedules import Act, Action
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.blocks import BlockCosts, PassTime, Spent
from byteprophet.simulate.execute.bucket_collectives import (
    BucketCollective,
    BucketCollectives,
    Part,
)
from byteprophet.simulate.execute.ranks import Done, Rank, RankRecord, Ranks
from byteprophet.simulate.execute.tables import Tables


@dataclass(frozen=True)
class JobGraph:
    """A graph, and for each pipeline rank what its first rank does."""

    graph: Graph
    ranks: tuple[RankRecord, ...]


def build(program: Program, costs: BlockCosts, *, folded: bool = True) -> JobGraph:
    """The graph of a program's iteration."""
    return _Build(program, Tables(program, costs, folded=folded), folded).run()


class _Build:
    def __init__(self, program: Program, tables: Tables, folded: bool) -> None:
        self._program = program
        self._tables = tables
        self._strategy = program.strategy
        self._mesh = mesh = program.strategy.mesh
        self._folded = folded
        self._members = 1 if folded else mesh.ranks // mesh.pp
        cluster = tables.costs.cluster
        self._ranks = Ranks(mesh, tables.costs.collectives, cluster.node.gpus, self._members)
        self._operations = self._ranks.operations
        self._collectives = BucketCollectives(self._ranks, tables, mesh)
        counts = len(program.stages), len(Act), self._strategy.micro_batches
        self._first = np.full((self._members, *counts), -1)
        self._last = np.full((self._members, *counts), -1)

    def run(self) -> JobGraph:
        for pp_rank, actions in enumerate(self._program.actions):
            for member, rank in enumerate(self._ranks.of[pp_rank]):
                self._act_all(rank, member, actions)
        self._send_activations()
        if not self._strategy.overlap and self._strategy.zero < 2:
            self._reduce_late()
        self._collectives.add()
        self._sum_tied()
        self._optimize()
        records = tuple(ranks[0].record for ranks in self._ranks.of)
        return JobGraph(self._operations.graph(), records)

    def _act_all(self, rank: Rank, member: int, actions: Sequence[Action]) -> None:
        """The schedule of a rank. Actions without collectives of buckets are added together."""
        plain: list[Action] = []
        for action in actions:
            gathers, reduces = self._moves(action)
            if self._folded and not gathers and not reduces:
                plain.append(action)
                continue
            self._act_plain(rank, member, plain)
            plain = []
            self._act(rank, member, action, gathers, reduces)
        self._act_plain(rank, member, plain)

    def _moves(self, action: Action) -> tuple[bool, bool]:
        """Whether parameters are gathered before an action, and gradients reduced after it."""
        _, act, number = action
        zero, overlap = self._strategy.zero, self._strategy.overlap
        gathers = (zero == 3 and act is not Act.WEIGHT) or (
            zero in (1, 2) and overlap and act is Act.FORWARD and number == 0
        )
        last = number == self._strategy.micro_batches - 1
        return gathers, act is self._final and (zero >= 2 or (last and overlap))

    @property
    def _final(self) -> Act:
        """The last action of a micro-batch on a stage."""
        return Act.WEIGHT if self._strategy.schedule == "zb1p" else Act.BACKWARD

    def _act_plain(self, rank: Rank, member: int, actions: Sequence[Action]) -> None:
        """Actions that are one operation each."""
        if not actions:
            return
        spent = [
            self._tables.pieces(stage, act, by_bucket=False)[0][1][0] for stage, act, _ in actions
        ]
        operations = self._operations
        first = operations.add_many([one.time_ns for one in spent], rank.gpu)
        numbers = range(first, first + len(actions))
        operations.depend(rank.last, first)
        operations.depend_each(numbers[:-1], numbers[1:])
        rank.last = numbers[-1]
        rank.record.computed += numbers
        rank.record.spent += spent
        for number, action in zip(numbers, actions, strict=True):
            self._done(rank, member, action, number, number)

    def _done(self, rank: Rank, member: int, action: Action, first: int, last: int) -> None:
        """Note where an action begins and ends; activations are kept in between."""
        rank.record.done.append(Done(action, first, last))
        stage, act, number = action
        self._first[member, stage, act, number] = first
        self._last[member, stage, act, number] = last
        saved = self._tables.saved_bytes[stage]
        if act is Act.FORWARD:
            self._operations.allocate(first, rank.record.pool, saved)
        elif act is self._final:
            self._operations.free(last, rank.record.pool, saved)

    def _act(self, rank: Rank, member: int, action: Action, gathers: bool, reduces: bool) -> None:
        """One action, with the collectives of its buckets."""
        stage, act, number = action
        zero = self._strategy.zero
        first = -1
        for bucket, passes in self._tables.pieces(stage, act, by_bucket=gathers or reduces):
            operations = [self._compute(rank, spent) for spent in passes]
            first = operations[0] if first < 0 else first
            if gathers:
                # FSDP gathers the next unit while one computes.
                after = rank.ends[-2] if zero == 3 and len(rank.ends) >= 2 else -1
                kind, when = CollectiveKind.ALL_GATHER, (int(act), number)
                collective = BucketCollective(stage, bucket, kind, "gather", when)
                self._collectives.join(collective, Part(member, after, operations[0]))
            rank.ends.append(rank.last)
            if reduces:
                kind = self._tables.reduction
                collective = BucketCollective(stage, bucket, kind, "reduce", (number,))
                self._collectives.join(collective, Part(member, rank.last, -1))
        self._done(rank, member, action, first, rank.last)

    def _compute(self, rank: Rank, spent: PassTime) -> int:
        operation = self._operations.add(spent.time_ns, rank.gpu)
        self._operations.depend(rank.last, operation)
        rank.last = operation
        rank.record.computed.append(operation)
        rank.record.spent.append(spent)
        return operation

    def _reduce_late(self) -> None:
        """Without overlap, gradients travel after the last action."""
        for stage in range(len(self._program.stages)):
            for bucket in range(self._tables.buckets(stage)):
                collective = BucketCollective(stage, bucket, self._tables.reduction, "reduce", ())
                for member, rank in enumerate(self._ranks.of[stage % self._mesh.pp]):
                    self._collectives.join(collective, Part(member, rank.last, -1))

    def _send_activations(self) -> None:
        """Activations go to the next stage, and their gradients back."""
        count = self._strategy.micro_batches
        for later, edge in enumerate(self._program.stages[1:], 1):
            gathering_ns = self._tables.gathering_ns(edge.gathered_bytes)
            for act, source, target in (
                (Act.FORWARD, later - 1, later),
                (Act.BACKWARD, later, later - 1),
            ):
                there, here = source % self._mesh.pp, target % self._mesh.pp
                for member in range(self._members):
                    device, transfer = self._ranks.message(
                        there, here, member, edge.received_bytes, act.name
                    )
                    transfer = replace(transfer, latency_ns=transfer.latency_ns + gathering_ns)
                    first = self._operations.flows(device, transfer, count)
                    flows = range(first, first + count)
                    waiting = self._first[member, target, act].tolist()
                    self._operations.depend_each(self._last[member, source, act].tolist(), flows)
                    self._operations.depend_each(flows, waiting)
                    record = self._ranks.of[here][member].record
                    if not self._strategy.overlap_p2p:  # received only when the rank is idle
                        earlier = dict(zip(record.computed[1:], record.computed, strict=False))
                        before = [earlier.get(operation, -1) for operation in waiting]
                        for operation, flow in zip(before, flows, strict=True):
                            self._operations.depend(operation, flow)
                    for operation, flow in zip(waiting, flows, strict=True):
                        record.wait(operation, flow, Spent.SEND)

    def _sum_tied(self) -> None:
        """The first and the last pipeline rank add up gradients of parameters that they share."""
        size = self._tables.tied_bytes()
        last = self._mesh.pp - 1
        if not size or not last:
            return
        for member in range(self._members):
            ranks = (self._ranks.of[0][member], self._ranks.of[last][member])
            done = [flow for rank in ranks for flow, _ in rank.record.synchronised]
            for source, target in ((0, last), (last, 0)):
                flow = self._operations.flow(
                    *self._ranks.message(source, target, member, size, "tied")
                )
                for operation in (*done, ranks[0].last, ranks[1].last):
                    self._operations.depend(operation, flow)
                for rank in ranks:
                    rank.record.synchronised.append((flow, Spent.ALL_REDUCE))

    def _optimize(self) -> None:
        """The optimizer runs when the norm of all gradients is known; then parameters travel."""
        operations = self._operations
        norm = operations.add(0)
        for rank in (rank for ranks in self._ranks.of for rank in ranks):
            for operation in (rank.last, *(flow for flow, _ in rank.record.synchronised)):
                operations.depend(operation, norm)
        late = self._strategy.zero in (1, 2) and not self._strategy.overlap
        for pp_rank, ranks in enumerate(self._ranks.of):
            spent = self._tables.optimizer_time(pp_rank)
            wanted = self._tables.gathered_late(pp_rank) if late else []
            for rank in ranks:
                update = operations.add(spent.time_ns, rank.gpu)
                operations.depend(norm, update)
                rank.record.computed.append(update)
                rank.record.spent.append(spent)
                for _, transfer in wanted:
                    flow = self._ranks.flow(rank, "gather", transfer)
                    operations.depend(update, flow)
                    rank.record.gathered.append(flow)
