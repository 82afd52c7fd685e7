"""The graph of one iteration of a program.

Every rank has a GPU, links to its node and to the network, and a connection per stream of
collectives, as NCCL has. The GPU does the actions of its schedule in order. An action is one
operation, or several if collectives of data parallelism start or must be complete in between. The
collectives that operators wait for are a part of their action's time, unless other transfers use
the same links meanwhile: then they are transfers, too, and share these links with the others.

Folding: the ranks of one pipeline rank are alike. They do the same at the same time, and have links
of their own. So one of them stands for all, and the result is the same to the nanosecond. If some
replicas are slower, there is one rank for each kind of replica, which meet for gradients. Unfolded
graphs have all ranks, which meet for each collective, and one operation per block. They are for
tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from byteprophet.graph import Graph
from byteprophet.simulate.compile.program import Program
from byteprophet.simulate.compile.schedules import Act, Action, receives_of
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.blocks import BlockCosts, Pass, PassTime, Spent, slower
from byteprophet.simulate.execute.bucket_collectives import (
    BucketCollective,
    BucketCollectives,
    Part,
)
from byteprophet.simulate.execute.conditions import ONE_REPLICA, Replicas
from byteprophet.simulate.execute.meetings import Meetings
from byteprophet.simulate.execute.passes import Passes
from byteprophet.simulate.execute.ranks import Done, Rank, RankRecord, Ranks
from byteprophet.simulate.execute.requests import Message
from byteprophet.simulate.execute.sharding import gathers_before, gathers_late, reduces_each
from byteprophet.simulate.execute.tables import Tables

NO_DELAYS: Mapping[int, int] = MappingProxyType({})
_NOTHING: Pass = (PassTime(0, {}),)


@dataclass(frozen=True)
class JobGraph:
    """A graph, and for each pipeline rank what its first rank does.

    ``messages``: those between stages, if requests wait in line. ``queued``: what may wait in
    queues of the network, and how often. ``unit_bytes``: by connection, the bytes of what is one
    in the sizes of the graph's operations.
    """

    graph: Graph
    ranks: tuple[RankRecord, ...]
    messages: tuple[Message, ...]
    queued: Mapping[int, int]
    unit_bytes: Mapping[int, float]


def build(
    program: Program,
    costs: BlockCosts,
    *,
    folded: bool = True,
    replicas: Replicas = ONE_REPLICA,
    waits: Sequence[tuple[int, int]] = (),
    delays_ns: Mapping[int, int] = NO_DELAYS,
) -> JobGraph:
    """The graph of a program's iteration.

    Args:
        program: what is done.
        costs: how long it takes.
        folded: whether one rank stands for all that are like it.
        replicas: those that differ; unfolded, all ranks are alike.
        waits: pairs of operations of which the second begins after the first, beside all others.
        delays_ns: how much longer some operations take.
    """
    members = replicas.members if folded else range(program.strategy.mesh.ranks_per_stage)
    # An operation that is slowed ends at a whole nanosecond, so several would be longer than one.
    whole = folded or costs.cluster.gpu.overlap_slowdown > 0
    tables = Tables(program, costs, folded=whole)
    tables.separate_shared(len(members))
    return _Build(program, tables, list(members), replicas).run(waits, delays_ns)


class _Build:
    def __init__(
        self, program: Program, tables: Tables, members: list[int], replicas: Replicas
    ) -> None:
        self._program = program
        self._tables = tables
        self._strategy = program.strategy
        self._mesh = mesh = program.strategy.mesh
        self._ranks = Ranks(mesh, tables.costs.collectives, members)
        self._operations = self._ranks.operations
        self._meetings = Meetings(self._operations, mesh)
        self._passes = Passes(self._ranks, self._meetings if len(members) > 1 else None)
        for rank in (rank for ranks in self._ranks.of for rank in ranks):
            rank.factor = replicas.factor(rank.member, rank.pp_rank)
        self._collectives = BucketCollectives(self._ranks, tables, mesh)
        posted = program.strategy.posted_receives
        self._in_line = tables.costs.cluster.network.requests_in_line
        self._messages: list[Message] = []
        self._receives = receives_of(program.actions) if posted else []
        counts = len(program.stages), len(Act), self._strategy.micro_batches
        self._first = np.full((len(members), *counts), -1)
        self._last = np.full((len(members), *counts), -1)

    def run(self, waits: Sequence[tuple[int, int]], delays_ns: Mapping[int, int]) -> JobGraph:
        for pp_rank, actions in enumerate(self._program.actions):
            for at, rank in enumerate(self._ranks.of[pp_rank]):
                self._act_all(rank, at, actions)
        self._send_activations()
        if not self._strategy.overlap and self._strategy.zero < 2:
            self._reduce_late()
        self._collectives.add()
        self._meetings.add()
        self._sum_tied()
        self._optimize()
        for before, after in waits:
            self._operations.depend(before, after)
        for operation, delay_ns in delays_ns.items():
            self._operations.duration_ns[operation] += delay_ns
        records = tuple(ranks[0].record for ranks in self._ranks.of)
        graph = self._operations.graph()
        messages, queued = tuple(self._messages), self._operations.queued
        return JobGraph(graph, records, messages, queued, self._ranks.unit_bytes())

    def _act_all(self, rank: Rank, at: int, actions: Sequence[Action]) -> None:
        """The schedule of a rank. Actions without collectives of buckets are added together."""
        plain: list[Action] = []
        for action, gathers in zip(actions, gathers_before(actions, self._strategy), strict=True):
            reduces = self._reduces(action)
            if not gathers and not reduces:
                plain.append(action)
                continue
            self._act_plain(rank, at, plain)
            plain = []
            self._act(rank, at, action, gathers, reduces)
        self._act_plain(rank, at, plain)

    def _reduces(self, action: Action) -> bool:
        """Whether gradients are sent after an action."""
        _, act, number = action
        strategy = self._strategy
        last = number == strategy.micro_batches - 1
        sends = reduces_each(strategy) or (last and (strategy.overlap or strategy.zero == 3))
        return act is self._final and sends

    @property
    def _final(self) -> Act:
        """The last action of a micro-batch on a stage."""
        return Act.WEIGHT if self._strategy.delays_weights else Act.BACKWARD

    def _act_plain(self, rank: Rank, at: int, actions: Sequence[Action]) -> None:
        """Actions without collectives of buckets."""
        passes = [
            self._tables.pieces(stage, act, by_bucket=False)[0][1] for stage, act, _ in actions
        ]
        ends = self._passes.add(rank, (one for several in passes for one in several))
        done = 0
        for several, action in zip(passes, actions, strict=True):
            self._done(rank, at, action, ends[done][0], ends[done + len(several) - 1][1])
            done += len(several)

    def _done(self, rank: Rank, at: int, action: Action, first: int, last: int) -> None:
        """Note where an action begins and ends; activations are kept in between."""
        rank.record.done.append(Done(action, first, last))
        stage, act, number = action
        self._first[at, stage, act, number] = first
        self._last[at, stage, act, number] = last
        saved = self._tables.saved_bytes[stage]
        recomputed = self._tables.recomputed_bytes[stage]
        if act is Act.FORWARD:
            self._operations.allocate(first, rank.record.pool, saved)
        if act is Act.BACKWARD and recomputed:
            self._operations.allocate(first, rank.record.pool, recomputed)
        if act is self._final:
            self._operations.free(last, rank.record.pool, saved + recomputed)

    def _act(self, rank: Rank, at: int, action: Action, gathers: bool, reduces: bool) -> None:
        """One action, with the collectives of its buckets."""
        stage, act, number = action
        zero = self._strategy.zero
        # FSDP2's hooks run when a stage has received its input, and it sends nothing before the
        # backward pass is over.
        lazy = zero == 3 and self._mesh.pp > 1
        first = self._nothing(rank) if lazy else -1
        # A unit of FSDP2 is gathered while the one before it computes. But the first one of a pass
        # waits for the pass before: forward, its streams wait for the kernels that were launched
        # before the root (FSDP2's ``_root_pre_forward``); backward, the unit, which is the last
        # one of the forward pass, was sharded when that ended.
        after = rank.last if zero == 3 else -1
        sent: list[tuple[int, int]] = []
        for bucket, passes in self._tables.pieces(stage, act, by_bucket=True):
            gathered = gathers and self._tables.is_gathered(stage, bucket, act)
            kind = CollectiveKind.ALL_GATHER
            given = self._tables.copied(stage, bucket, kind) if gathered else ()
            made = self._tables.copied(stage, bucket, self._tables.reduction) if reduces else ()
            parts = [one for one in (given, *passes, made) if one]
            before = rank.last
            begin = self._passes.add(rank, parts)[0][0]
            if gathered:
                when = (int(act), number)
                collective = BucketCollective(stage, bucket, kind, "gather", when)
                self._collectives.join(collective, Part(rank, after, begin))
            if zero == 3 and self._tables.wanted(stage, bucket, kind):
                after = before
            first = begin if first < 0 else first
            sent.append((bucket, rank.last))
        last = rank.last
        end = self._nothing(rank) if reduces and self._strategy.reduce_in_backward else -1
        for bucket, made_at in sent if reduces else ():
            collective = BucketCollective(
                stage, bucket, self._tables.reduction, "reduce", (number,)
            )
            self._collectives.join(collective, Part(rank, last if lazy else made_at, end))
        self._done(rank, at, action, first, rank.last)

    def _nothing(self, rank: Rank) -> int:
        """An operation without work, which others wait for, or which waits for others."""
        return self._passes.add(rank, [_NOTHING])[0][0]

    def _reduce_late(self) -> None:
        """Without overlap, gradients travel after the last action."""
        for stage in range(len(self._program.stages)):
            for bucket in range(self._tables.buckets(stage)):
                collective = BucketCollective(stage, bucket, self._tables.reduction, "reduce", ())
                for rank in self._ranks.of[stage % self._mesh.pp]:
                    self._collectives.join(collective, Part(rank, rank.last, -1))

    def _send_activations(self) -> None:
        """Activations go to the next stage, and their gradients back."""
        count = self._strategy.micro_batches
        for later, edge in enumerate(self._program.stages[1:], 1):
            gathering_ns = self._tables.gathering_ns(edge.gathered_bytes)
            for act, source, target, size_bytes in (
                (Act.FORWARD, later - 1, later, edge.received_bytes),
                (Act.BACKWARD, later, later - 1, edge.returned_bytes),
            ):
                if act is Act.BACKWARD and not size_bytes:
                    continue  # what it received has no gradient
                sources, targets = (self._ranks.of[one % self._mesh.pp] for one in (source, target))
                pairs = zip(sources, targets, strict=True)
                for at, (there, here) in enumerate(pairs):
                    device, transfer = self._ranks.message(there, here, size_bytes, act.name)
                    transfer = replace(transfer, latency_ns=transfer.latency_ns + gathering_ns)
                    first = self._operations.flows(device, transfer, count)
                    flows = range(first, first + count)
                    for flow in flows:
                        self._operations.may_queue(flow, transfer)
                    waiting = self._first[at, target, act].tolist()
                    self._operations.depend_each(self._last[at, source, act].tolist(), flows)
                    self._operations.depend_each(flows, waiting)
                    asked = self._asked_after(here, target, act, waiting)
                    for operation, flow in zip(asked, flows, strict=True):
                        self._operations.depend(operation, flow)
                    if self._in_line:
                        ends = (there.pp_rank, at), (here.pp_rank, at)
                        sent = self._last[at, source, act].tolist()
                        self._messages += [
                            Message(flow, *ends, *after)
                            for flow, *after in zip(flows, sent, asked, strict=True)
                        ]
                    for operation, flow in zip(waiting, flows, strict=True):
                        here.record.wait(operation, flow, Spent.SEND)

    def _asked_after(self, rank: Rank, stage: int, act: Act, waiting: Sequence[int]) -> list[int]:
        """For each micro-batch, the operation after which a rank asks for its message; -1: none.

        ``waiting``: the operations that wait for these messages.
        """
        done = rank.record.done
        if self._receives:
            asked = self._receives[rank.pp_rank]
            counts = [asked[Action(stage, act, number)] for number in range(len(waiting))]
            return [done[count - 1].last if count else -1 for count in counts]
        if self._strategy.overlap_p2p:
            return [-1] * len(waiting)
        earlier = {now.first: was.last for was, now in pairwise(done)}  # when the rank is idle
        return [earlier.get(operation, -1) for operation in waiting]

    def _sum_tied(self) -> None:
        """The first and the last pipeline rank add up gradients of parameters that they share."""
        size = self._tables.tied_bytes()
        last = self._mesh.pp - 1
        if not size or not last:
            return
        for ranks in zip(self._ranks.of[0], self._ranks.of[last], strict=True):
            done = [flow for rank in ranks for flow, _ in rank.record.synchronised]
            for source, target in (ranks, ranks[::-1]):
                flow = self._operations.flow(*self._ranks.message(source, target, size, "tied"))
                for operation in (*done, ranks[0].last, ranks[1].last):
                    self._operations.depend(operation, flow)
                for rank in ranks:
                    rank.record.synchronised.append((flow, Spent.ALL_REDUCE))

    def _launch(self) -> None:
        """The hosts of ranks launch while GPUs compute and wait, and the optimizer comes last."""
        for pp_rank, ranks in enumerate(self._ranks.of):
            host_ns = self._tables.host_ns(pp_rank)
            for rank in ranks if host_ns else ():
                rank.record.synchronised.append((self._operations.add(host_ns), Spent.LAUNCH))

    def _optimize(self) -> None:
        """The optimizer runs when the norm of all gradients is known; then parameters travel."""
        operations = self._operations
        self._launch()
        norm = operations.add(0)
        for rank in (rank for ranks in self._ranks.of for rank in ranks):
            for operation in (rank.last, *(flow for flow, _ in rank.record.synchronised)):
                operations.depend(operation, norm)
        late = gathers_late(self._strategy)
        for pp_rank, ranks in enumerate(self._ranks.of):
            spent = self._tables.optimizer_time(pp_rank)
            wanted = self._tables.gathered_late(pp_rank) if late else []
            for rank in ranks:
                own = slower(spent, rank.factor)
                update = operations.add(own.time_ns, rank.gpu)
                operations.depend(norm, update)
                rank.record.computed.append(update)
                rank.record.spent.append(own)
                for _, transfer in wanted:
                    flow = self._ranks.flow(rank, "gather", transfer)
                    operations.depend(update, flow)
                    rank.record.gathered.append(flow)
