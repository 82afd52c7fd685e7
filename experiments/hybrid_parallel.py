"""Makes a rank's part of a job of ``hybrid.py``, with PyTorch's own means of parallelism.

| strategy | PyTorch |
|---|---|
| dp | DistributedDataParallel; gradients of context-parallel ranks are averaged with it |
| runtime | in place of it, `byteprophet.torch.DistributedOptimizer` with this runtime |
| zero | ``fully_shard``; 1 and 2 keep parameters between the passes, 1 adds up gradients first |
| tp, sp | ``parallelize_module`` with ``ColwiseParallel`` and ``RowwiseParallel`` |
| pp | ``torch.distributed.pipelining``: its schedules, and stages as the simulator divides them |
| cp | keys and values are gathered by functional collectives, whose gradients are scattered |
| recompute | ``torch.utils.checkpoint`` around each layer |

On a CPU, FSDP2 waits for each transfer, as there are no streams. Its own interfaces let transfers
overlap compute: units are gathered asynchronously and ahead, and reduce-scatters are waited for
before the optimizer steps. With sequence parallelism, gradients of norms and biases are summed in
one all-reduce over the tensor-parallel ranks, as Megatron-LM does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, cast

import torch
import torch.distributed as dist
from hybrid_cases import Case
from hybrid_models import Embedding, Gather, Head, Layer, Stage, loss_of
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed._functional_collectives import all_gather_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel

from byteprophet.simulate.operation.mesh import Mesh

_AXES = ("pp", "dp", "cp", "tp")
"""From the most distant ranks to neighbours."""
_SPLIT = ("qkv", "output", "up", "down")
"""Linear layers that tensor parallelism splits."""

Schedule: TypeAlias = "pipelining.schedules._PipelineSchedule"


class Ranks(NamedTuple):
    """A device mesh in which ranks are numbered as in the simulator.

    Attributes:
        mesh: all axes.
        data: the ranks over which gradients are summed: data- and context-parallel ones.
        axes: the axes of each process group, by its name, as the simulator writes them.
        place: where this rank is on each axis.
    """

    mesh: DeviceMesh
    data: DeviceMesh
    axes: dict[str, str]
    place: dict[str, int]


def ranks_of(mesh: Mesh) -> Ranks:
    """The mesh of a strategy; every rank of the job must call this."""
    sizes = tuple(mesh.sizes[axis] for axis in _AXES)
    made = init_device_mesh("cpu", sizes, mesh_dim_names=_AXES)
    axes = {str(made.get_group(axis).group_name): axis for axis in _AXES if mesh.sizes[axis] > 1}
    data = made["dp"]
    if mesh.cp > 1:
        data = made["dp", "cp"]._flatten("dp_cp")
        axes[str(data.get_group().group_name)] = "cp dp" if mesh.dp > 1 else "cp"
    return Ranks(made, data, axes, {axis: made.get_local_rank(axis) for axis in _AXES})


class Job:
    """A rank's part of a job."""

    def __init__(
        self,
        case: Case,
        ranks: Ranks,
        *,
        computes: bool,
        finish: Callable[[], object] | None = None,
    ) -> None:
        """Make the stages of this rank, their optimizer, and a batch.

        Args:
            case: the job.
            ranks: its mesh.
            computes: results count, not only times.
            finish: waits for a paced device, if our own runtime exchanges gradients.
        """
        self._case = case
        self._strategy = strategy = case.strategy
        self._mesh = mesh = strategy.mesh
        self._ranks, self._data = ranks.mesh, ranks.data
        program = case.program
        place = ranks.place
        self._own_tokens = case.config.sequence // mesh.cp
        self._first_token = place["cp"] * self._own_tokens
        self._numbers = range(place["pp"], len(program.stages), mesh.pp)
        adds = strategy.zero > 1 and strategy.micro_batches > 1  # to gradients that must be there
        self._reductions = _Reductions(waits=computes and adds)
        self.stages = [
            Stage(case.config, [block.path for block in program.stages[number].blocks])
            for number in self._numbers
        ]
        self._summed: list[nn.Parameter] = []
        self.modules: list[nn.Module] = [self._parallel(stage) for stage in self.stages]
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            self._parameters(), lr=1e-3, fused=True
        )
        if case.runtime:
            self._exchange(case.runtime, finish)
        self._schedule = self._pipeline(len(program.stages)) if mesh.pp > 1 else None
        self._batch(place["dp"])

    def iteration(self) -> list[Tensor]:
        """Train on the batch once; the losses of micro-batches, where the last stage is."""
        self.optimizer.zero_grad()
        losses: list[Tensor] = []
        if self._schedule is None:
            losses = [self._pass(number) for number in range(self._strategy.micro_batches)]
        else:
            self._step(self._schedule, losses)
        self._reductions.finish()
        self._sum_tensor_parallel()
        self.optimizer.step()
        return [loss.detach() for loss in losses]

    @property
    def runtime(self) -> str:
        """Our own runtime that exchanges gradients; empty: PyTorch does."""
        return self._case.runtime

    def close(self) -> None:
        """Wait for what our own runtime still does."""
        if self._case.runtime:
            cast("Any", self.optimizer).finish()

    @property
    def settled(self) -> bool:
        """Whether our own runtime has chosen its buckets."""
        from byteprophet.torch.optimizer import is_settled

        return is_settled(self.optimizer)

    # Parallelism

    def _parallel(self, stage: Stage) -> nn.Module:
        """A stage with all that the strategy asks for."""
        strategy, mesh = self._strategy, self._mesh
        for path, block in stage.blocks.items():
            if isinstance(block, Embedding):
                block.first = self._first_token
            elif isinstance(block, Layer):
                block.recompute = any(rule.recompute for rule in strategy.rules)
                block.attention.first = self._first_token
                if mesh.cp > 1:
                    block.attention.gather = _gather(self._ranks.get_group("cp"))
            if mesh.tp > 1:
                self._split(path, block)
        if mesh.dp * mesh.cp == 1 or self._case.runtime:
            return stage
        if strategy.zero:
            return self._sharded(stage)
        if mesh.tp > 1:
            _pre_dp_module_transform(stage)
        return DistributedDataParallel(
            stage,
            process_group=self._data.get_group(),
            bucket_cap_mb=2 * strategy.bucket_mb,  # fp32, and the simulator counts two bytes
            gradient_as_bucket_view=True,
        )

    def _exchange(self, runtime: str, finish: Callable[[], object] | None) -> None:
        """Let our own runtime exchange gradients.

        It measures and plans by the time of the host. So the device finishes before a layer's
        parameters are waited for, and before a gradient is seen, as if the host itself computed.
        """
        import byteprophet.torch as bps

        (stage,) = self.stages

        def finished(*_: Any) -> None:
            if finish is not None:
                finish()

        for parameter in stage.parameters():
            hooked: Any = parameter
            hooked.register_post_accumulate_grad_hook(finished)
        for module in stage.modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_pre_hook(finished)
        self.optimizer = bps.DistributedOptimizer(self.optimizer, model=stage, sync=runtime)

    def _split(self, path: str, block: nn.Module) -> None:
        """Tensor parallelism, with or without that of sequences."""
        ranks = self._ranks["tp"]
        by_sequence = "sp=1" in self._case.line.split()
        outside = Shard(1) if by_sequence else Replicate()
        if isinstance(block, Layer):
            columns = ColwiseParallel(input_layouts=outside)
            rows = RowwiseParallel(output_layouts=outside)
            plan = {
                "attention.qkv": columns,
                "attention.output": rows,
                "mlp.up": columns,
                "mlp.down": rows,
            }
            parallelize_module(block, ranks, plan, src_data_rank=None)
            if by_sequence:
                self._summed += (
                    parameter
                    for name, parameter in block.named_parameters()
                    if not any(part in _SPLIT for part in name.split("."))
                )
        if not by_sequence:
            return
        before, after = Replicate(), Replicate()
        if path == "layers_0":
            after = cast("Any", outside)
        elif isinstance(block, Head):
            before = cast("Any", outside)
        else:
            return
        parallelize_module(
            block,
            ranks,
            PrepareModuleInput(
                input_layouts=before, desired_input_layouts=after, use_local_output=True
            ),
            src_data_rank=None,
        )

    def _sharded(self, stage: Stage) -> nn.Module:
        """FSDP2 with a unit per block."""
        keeps = self._strategy.zero < 3
        units = []
        for block in stage.blocks.values():
            fully_shard(block, mesh=self._data, reshard_after_forward=not keeps)
            units.append(cast("FSDPModule", block))
        fully_shard(stage, mesh=self._data, reshard_after_forward=False)
        cast("FSDPModule", stage)._set_unshard_async_op(True)
        for unit, following in pairwise(units):
            if not keeps:
                unit.set_modules_to_forward_prefetch([following])
        for unit in units:
            unit.set_force_sum_reduction_for_comms(True)  # gloo cannot average
            unit.set_gradient_divide_factor(1.0)
            unit.set_custom_reduce_scatter(cast("Any", self._reductions))
        if keeps:

            def gather(*_: Any) -> None:
                for unit in units:
                    unit.unshard(async_op=True)

            stage.register_forward_pre_hook(gather)
        return stage

    def _parameters(self) -> list[dict[str, Any]]:
        """The parameters by their device mesh: an operator on several takes those of one."""
        groups: dict[Any, list[nn.Parameter]] = {}
        for module in self.modules:
            for parameter in module.parameters():
                groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
        return [{"params": each} for each in groups.values()]

    def _pipeline(self, stages: int) -> Schedule:
        group = self._ranks.get_group("pp")
        made = [
            pipelining.PipelineStage(
                module,
                number,
                stages,
                torch.device("cpu"),
                input_args=self._edge(number, stages),
                output_args=self._edge(number + 1, stages),
                group=group,
            )
            for number, module in zip(self._numbers, self.modules, strict=True)
        ]
        settings: dict[str, Any] = {
            "n_microbatches": self._strategy.micro_batches,
            "loss_fn": self._loss,
            "scale_grads": False,
        }
        kind = self._strategy.schedule
        if kind == "interleaved":
            return pipelining.ScheduleInterleaved1F1B(list(made), **settings)
        if kind == "zb1p":
            return ScheduleInterleavedZeroBubble(list(made), **settings)
        single = pipelining.ScheduleGPipe if kind == "gpipe" else pipelining.Schedule1F1B
        return single(made[0], **settings)

    def _edge(self, number: int, stages: int) -> Tensor:
        """What goes into stage ``number``, or out of the last one."""
        samples, config = self._strategy.micro_batch, self._case.config
        if number == 0:
            return torch.zeros(samples, self._own_tokens, dtype=torch.int64)
        if number == stages:
            return torch.zeros(samples, self._own_tokens, config.vocabulary)
        tokens = self._own_tokens // (self._mesh.tp if "sp=1" in self._case.line.split() else 1)
        return torch.zeros(samples, tokens, config.hidden, requires_grad=True)

    # An iteration

    def _batch(self, replica: int) -> None:
        """Draw a batch, the same for every strategy, and keep the part of this rank."""
        strategy, config = self._strategy, self._case.config
        count, samples = strategy.micro_batches, strategy.micro_batch
        draw = torch.Generator().manual_seed(0)
        shape = (count * samples * self._mesh.dp, config.sequence + 1)
        tokens = torch.randint(config.vocabulary, shape, generator=draw)
        own = tokens[replica * count * samples : (replica + 1) * count * samples]
        part = slice(self._first_token, self._first_token + self._own_tokens)
        self.tokens, self.targets = (
            each[:, part].contiguous() for each in (own[:, :-1], own[:, 1:])
        )

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of a micro-batch, as a part of the mean over the batch."""
        parts = self._strategy.micro_batches
        if self._strategy.zero:  # FSDP2 is told to sum, DistributedDataParallel averages
            parts *= self._mesh.dp * self._mesh.cp
        return loss_of(logits, targets) / parts

    def _pass(self, number: int) -> Tensor:
        """A micro-batch, forward and backward."""
        (module,) = self.modules
        samples, strategy = self._strategy.micro_batch, self._strategy
        last = number == strategy.micro_batches - 1
        if isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(last or strategy.zero >= 2)
            module.set_reshard_after_backward(last or strategy.zero == 3)
            module.set_is_last_backward(last)
        part = slice(number * samples, (number + 1) * samples)

        def run() -> Tensor:
            loss = self._loss(module(self.tokens[part]), self.targets[part])
            torch.autograd.backward(loss)
            return loss

        if isinstance(module, DistributedDataParallel) and not last:
            with module.no_sync():
                return run()
        return run()

    def _step(self, schedule: Any, losses: list[Tensor]) -> None:
        given = (self.tokens,) if self._numbers[0] == 0 else ()
        pp = self._mesh.pp
        if self._numbers[0] % pp == pp - 1:
            schedule.step(*given, target=self.targets, losses=losses, return_outputs=False)
        else:
            schedule.step(*given, return_outputs=False)

    def _sum_tensor_parallel(self) -> None:
        gradients = [each.grad for each in self._summed if each.grad is not None]
        if not gradients:
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=self._ranks.get_group("tp"))
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def _gather(group: dist.ProcessGroup) -> Gather:
    """Gathers keys or values, (batch, heads, sequence, width), along the sequence."""

    def gather(part: Tensor) -> Tensor:
        whole: Tensor = all_gather_single_autograd(part.contiguous(), gather_dim=2, group=group)
        return whole

    return gather


class _Reductions:
    """FSDP2's reduce-scatters, which are waited for at the end unless ``waits``."""

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self._in_flight: list[tuple[dist.Work, Sequence[Tensor]]] = []

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate memory for a transfer."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Begin to sum over ``group``; ``op`` is ignored."""
        work = dist.reduce_scatter_single(output_tensor, input_tensor, group=group, async_op=True)
        assert work is not None
        self._in_flight.append((work, (output_tensor, input_tensor)))
        if self._waits:
            self.finish()

    def finish(self) -> None:
        """Wait for all."""
        while self._in_flight:
            self._in_flight.pop(0)[0].wait()
