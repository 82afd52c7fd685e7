"""What the graph of a job needs to know of each stage: times of its parts, and what travels."""

from __future__ import annotations

from collections.abc import Iterator

from byteprophet.errors import UserError
from byteprophet.simulate.compile.program import Block, Program
from byteprophet.simulate.compile.schedules import Act
from byteprophet.simulate.compile.steps import Collective, CollectiveKind, Phase
from byteprophet.simulate.costs.blocks import (
    NOTHING_SHARED,
    BlockCosts,
    Pass,
    PassTime,
    Spent,
    joined,
)
from byteprophet.simulate.costs.collectives import Transfer
from byteprophet.simulate.execute.gradients import Held, buckets, held, merged, transfers
from byteprophet.simulate.execute.sharding import gathered_back, reduction
from byteprophet.simulate.tree.strategy import PRECISIONS

_COPY_BYTES = 4
"""Of a parameter in the optimizer's own copy."""
LARGEST_GRAPH = 4_000_000
"""Operations. Before that, collectives that share links become a part of operators' time again."""
Pieces = list[tuple[int, list[Pass]]]
"""Parts of an action, in order: the bucket, and its passes."""
Wanted = list[tuple[tuple[str, ...], Transfer]]
"""Collectives: the mesh axes, and the transfer."""


class Tables:
    """Times and transfers of the stages of a program, each worked out once."""

    def __init__(self, program: Program, costs: BlockCosts, *, folded: bool) -> None:
        """``folded``: whether the blocks between two collectives are one operation."""
        self.strategy = program.strategy
        self.precision = PRECISIONS[program.strategy.precision]
        self.reduction = reduction(program.strategy)
        self.costs = costs
        self._folded = folded
        self._stages = program.stages
        self._tied_elements = program.tied_elements
        self._alike: dict[tuple[int, ...], Held] = {}
        self._buckets = [buckets(stage.blocks, program.strategy) for stage in program.stages]
        self._gathered_back = [gathered_back(stage.blocks) for stage in program.stages]
        self._held = [
            [self._held_by([stage.blocks[at] for at in group]) for group in groups]
            for stage, groups in zip(program.stages, self._buckets, strict=True)
        ]
        self.saved_bytes = [stage.saved_bytes for stage in program.stages]
        self.recomputed_bytes = [stage.recomputed_bytes for stage in program.stages]
        self._pieces: dict[tuple[int, Act, bool], Pieces] = {}
        self._wanted: dict[tuple[int, int, CollectiveKind], Wanted] = {}
        self._copied: dict[tuple[int, int, CollectiveKind], Pass] = {}
        self._shared = NOTHING_SHARED

    def separate_shared(self, members: int) -> None:
        """Keep collectives on links that others use apart, if the graph is not too large then.

        Args:
            members: the ranks of each pipeline rank that are simulated.

        Raises:
            UserError: the graph would be too large without, too.
        """
        self._shared = frozenset(self._used_besides())
        if self._operations() * members <= LARGEST_GRAPH:
            return
        self._shared = NOTHING_SHARED
        self._pieces.clear()
        if self._operations() * members > LARGEST_GRAPH:
            raise UserError(
                f"strategy: {self.strategy.micro_batches} micro-batches on {len(self._stages)} "
                f"stages: more than {LARGEST_GRAPH:,} operations"
            )

    def _operations(self) -> int:
        """About the number of operations of one rank per pipeline rank."""
        strategy = self.strategy
        acts = list(Act) if strategy.delays_weights else [Act.FORWARD, Act.BACKWARD]
        return strategy.micro_batches * sum(
            len(passed)
            for stage in range(len(self._stages))
            for act in acts
            for _, passes in self.pieces(stage, act, by_bucket=strategy.zero >= 2)
            for passed in passes
        )

    def _used_besides(self) -> Iterator[bool]:
        """The links that buckets and activations use while operators wait for collectives."""
        strategy = self.strategy
        if strategy.overlap or strategy.zero >= 2:
            kinds = {self.reduction}
            if strategy.zero:
                kinds.add(CollectiveKind.ALL_GATHER)
            for stage, groups in enumerate(self._buckets):
                for bucket in range(len(groups)):
                    for kind in kinds:
                        for _, transfer in self.wanted(stage, bucket, kind):
                            yield from transfer.links
        mesh, per_node = strategy.mesh, self.costs.cluster.node.gpus
        for later in range(1, len(self._stages)):
            first = [at % mesh.pp * (mesh.ranks // mesh.pp) for at in (later - 1, later)]
            if first[0] // per_node != first[1] // per_node:
                yield True

    def _held_by(self, blocks: list[Block]) -> Held:
        """The parameters of a bucket. Equal blocks are looked at once."""
        key = tuple(id(block.compiled) for block in blocks)
        if key not in self._alike:
            self._alike[key] = held(blocks, self.strategy.mesh)
        return self._alike[key]

    def buckets(self, stage: int) -> int:
        """The number of buckets of a stage."""
        return len(self._buckets[stage])

    def is_gathered(self, stage: int, bucket: int, act: Act) -> bool:
        """Whether a bucket takes part if the parameters of a stage are gathered before ``act``."""
        blocks = self._gathered_back[stage]
        return act is Act.FORWARD or any(blocks[at] for at in self._buckets[stage][bucket])

    def pieces(self, stage: int, act: Act, *, by_bucket: bool) -> Pieces:
        """The parts of an action: one per bucket, or one for all."""
        key = (stage, act, by_bucket)
        if key not in self._pieces:
            groups = self._buckets[stage]
            if not by_bucket:
                groups = [[at for group in groups for at in group]]
            pieces: Pieces = []
            for bucket, group in enumerate(groups):
                order = group[::-1] if act is Act.FORWARD else group
                passes = [self._pass(stage, act, at) for at in order]
                pieces.append((bucket, [joined(passes)] if self._folded else passes))
            self._pieces[key] = pieces[::-1] if act is Act.FORWARD else pieces
        return self._pieces[key]

    def _pass(self, stage: int, act: Act, at: int) -> Pass:
        blocks = self._stages[stage].blocks
        times = self.costs.time(blocks[at].compiled, self._shared)
        if act is Act.FORWARD:
            ends = self._stages[stage].last if at == len(blocks) - 1 else ()
            more = self.costs.steps(ends, self._shared)
            return joined([times.forward, more]) if ends else times.forward
        if act is Act.WEIGHT:
            return times.weight
        if self.strategy.delays_weights:
            return times.backward
        return joined([times.backward, times.weight])

    def wanted(self, stage: int, bucket: int, kind: CollectiveKind) -> Wanted:
        """The collectives of a bucket's gradients, or (all-gather) parameters."""
        key = (stage, bucket, kind)
        if key not in self._wanted:
            self._wanted[key] = self._transfers(kind, self._held[stage][bucket])
        return self._wanted[key]

    def copied(self, stage: int, bucket: int, kind: CollectiveKind) -> Pass:
        """The copies of a bucket that is gathered or reduced, if the strategy counts them.

        FSDP2 copies a rank's part of the parameters into a flat buffer, and what was gathered out
        of it; and all gradients into another one.
        """
        key = (stage, bucket, kind)
        if key not in self._copied:
            time_ns = 0
            if self.strategy.copies and self.strategy.zero:
                time_ns = round(self._copied_ns(kind, self._held[stage][bucket]))
            self._copied[key] = (PassTime(time_ns, {Spent.COPIES: time_ns}),) if time_ns else ()
        return self._copied[key]

    def _copied_ns(self, kind: CollectiveKind, whose: Held) -> float:
        mesh, gathers = self.strategy.mesh, kind is CollectiveKind.ALL_GATHER
        return sum(
            self.costs.copy_ns(size * (1 + 1 / mesh.parts(axes) if gathers else 1))
            for axes, size in whose.sent_bytes(kind, self.strategy)
            if axes
        )

    def gathered_late(self, pp_rank: int) -> Wanted:
        """The collectives of all parameters of a pipeline rank."""
        return self._transfers(CollectiveKind.ALL_GATHER, self.held(pp_rank))

    def _transfers(self, kind: CollectiveKind, whose: Held) -> Wanted:
        return transfers(kind, whose.sent_bytes(kind, self.strategy), self.costs.collectives)

    def held(self, pp_rank: int) -> Held:
        """All parameters of a pipeline rank."""
        stages = range(pp_rank, len(self._held), self.strategy.mesh.pp)
        return merged(one for stage in stages for one in self._held[stage])

    def bucket_bytes(self, pp_rank: int, kind: CollectiveKind) -> list[int]:
        """What is sent of each bucket of a pipeline rank (``Held.sent_bytes``)."""
        stages = range(pp_rank, len(self._held), self.strategy.mesh.pp)
        return [
            sum(size for _, size in one.sent_bytes(kind, self.strategy))
            for stage in stages
            for one in self._held[stage]
        ]

    def optimizer_time(self, pp_rank: int) -> PassTime:
        """Reads gradients and state, and writes state and parameters.

        Before, gradients of parameters that tensor-parallel ranks share are summed.
        """
        whose = self.held(pp_rank)
        precision, strategy = self.precision, self.strategy
        updated = precision.gradient_bytes + 2 * precision.state_bytes
        moved = precision.parameter_bytes
        if moved >= _COPY_BYTES:
            updated += 2 * moved  # there is no copy: they are read and written
            moved = 0
        if strategy.eager and precision.parameter_bytes < _COPY_BYTES:
            moved += _COPY_BYTES + precision.gradient_bytes  # its copy is read, gradients cleared
        elements = sum(
            count / (strategy.mesh.parts(axes) if strategy.zero else 1)
            for axes, count in whose.trained
        )
        time_ns = self.costs.update_ns(elements * updated)
        time_ns += self.costs.roofline.memory_ns(elements * moved)
        by_use = {Spent.OPTIMIZER: round(time_ns)}
        if whose.tensor_elements:
            costs = self.costs.collectives
            size = whose.tensor_elements * precision.sent_gradient_bytes
            transfer = costs.transfer(CollectiveKind.ALL_REDUCE, costs.group(("tp",)), size)
            by_use[Spent.ALL_REDUCE] = round(costs.alone_ns(transfer))
        return PassTime(sum(by_use.values()), by_use)

    def host_ns(self, pp_rank: int) -> int:
        """When the host lets the optimizer begin, if it may run ahead of the GPU freely.

        It needs so long for all its launches that the optimizer would end with the last of them.
        """
        if not self.costs.runs_ahead:
            return 0
        blocks = [block for stage in self._stages for block in stage.blocks]
        each = sum(self.costs.host_ns(block.compiled) for block in blocks)
        update_ns = self.optimizer_time(pp_rank).by_use[Spent.OPTIMIZER]
        return max(0, round(self.strategy.micro_batches * each) - update_ns)

    def gathering_ns(self, size_bytes: int) -> int:
        """The time in which tensor-parallel ranks gather activations that came in parts."""
        if not size_bytes:
            return 0
        gather = Collective(CollectiveKind.ALL_GATHER, ("tp",), size_bytes, Phase.FORWARD)
        return round(self.costs.collectives.time_ns(gather))

    def tied_bytes(self) -> int:
        """The gradients of parameters that the last pipeline rank shares with the first."""
        return self._tied_elements * self.precision.sent_gradient_bytes
