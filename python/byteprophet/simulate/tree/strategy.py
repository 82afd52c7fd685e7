"""A parallel strategy as data: a mesh, a schedule, and rules for nodes of the model's tree."""

from __future__ import annotations

from dataclasses import dataclass

from byteprophet.errors import UserError
from byteprophet.simulate.operation.mesh import AXES, Mesh

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb1p")
"""``interleaved``: 1F1B with several chunks per rank. ``zb1p``: zero bubble, which delays the
gradients of parameters."""
LARGEST = 1 << 20
"""Of degrees and numbers of micro-batches."""


@dataclass(frozen=True)
class Precision:
    """The bytes per parameter of what a rank keeps, and of what it sends.

    Attributes:
        parameter_bytes: the parameters that the forward pass uses.
        gradient_bytes: the gradients.
        state_bytes: the optimizer's state, with its own copy of the parameters if it has one.
        sent_gradient_bytes: gradients that are sent.
        sent_parameter_bytes: parameters that are sent.
    """

    parameter_bytes: int
    gradient_bytes: int
    state_bytes: int
    sent_gradient_bytes: int
    sent_parameter_bytes: int


PRECISIONS = {
    # Megatron-LM: bf16 parameters, fp32 gradients; Adam's two moments and an fp32 copy.
    "bf16": Precision(2, 4, 12, 4, 2),
    # Megatron-LM of 2022 with fp16: gradients are kept and sent as fp16.
    "fp16": Precision(2, 2, 16, 2, 2),
    # DeepSpeed's BF16 optimizer: bf16 gradients, which it adds up as fp32.
    "deepspeed_bf16": Precision(2, 6, 12, 4, 2),
    # FSDP2 with mixed precision: fp32 shards, gathered as bf16; gradients reduced as fp32.
    "fsdp2": Precision(4, 4, 8, 4, 2),
}


@dataclass(frozen=True)
class Rule:
    """Settings of all nodes whose path matches.

    Attributes:
        pattern: a path such as "layers.*.mlp"; in each component, ``*`` stands for any text. Empty:
            the root.
        splits: for a mesh axis, the dimensions that may be split over it at this node and below.
            An operator takes the first that it has. They replace what holds above.
        recompute: whether the forward pass of the node runs again in the backward pass, so that
            only its inputs are kept.
        stage: the pipeline stage of the node; None: as above.
    """

    pattern: str
    splits: tuple[tuple[str, tuple[str, ...]], ...] = ()
    recompute: bool = False
    stage: int | None = None


@dataclass(frozen=True)
class Strategy:
    """How a model is trained.

    Attributes:
        mesh: the degrees of parallelism.
        rules: the settings of nodes; of two for one node, the later one holds.
        micro_batches: micro-batches per iteration.
        micro_batch: samples of a micro-batch on each data-parallel rank.
        schedule: one of ``SCHEDULES``.
        chunks: stages per pipeline rank.
        zero: what is sharded over data-parallel ranks. 1: optimizer state; 2: gradients, too; 3:
            parameters, too, as FSDP does.
        overlap: whether gradients (and with ``zero`` 3, parameters) are sent while others compute.
        precision: a name in ``PRECISIONS``.
        scatter_gather: whether tensor-parallel ranks that hold the same activations each send a
            part of them to the next stage, where they are gathered. Megatron-LM did so before it
            had sequence parallelism.
        bucket_mb: gradients that travel together without ``zero`` 3, in MiB, as
            DistributedDataParallel's ``bucket_cap_mb``.
        overlap_p2p: whether a stage receives activations and gradients while it computes. PyTorch's
            GPipe and 1F1B, and Megatron-LM's 1F1B, ask for them when they need them.
    """

    mesh: Mesh
    rules: tuple[Rule, ...] = ()
    micro_batches: int = 1
    micro_batch: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    zero: int = 0
    overlap: bool = True
    precision: str = "bf16"
    scatter_gather: bool = False
    bucket_mb: int = 25
    overlap_p2p: bool = True

    @property
    def stages(self) -> int:
        """The number of pipeline stages."""
        return self.mesh.pp * self.chunks

    @property
    def samples(self) -> int:
        """Samples of a micro-batch over all data-parallel ranks."""
        return self.micro_batch * self.mesh.dp * self.mesh.ep

    def __post_init__(self) -> None:
        """Raises ``UserError`` if the settings do not fit together."""
        for name, value in {
            **self.mesh.sizes,
            "micro_batches": self.micro_batches,
            "micro_batch": self.micro_batch,
            "chunks": self.chunks,
            "bucket_mb": self.bucket_mb,
        }.items():
            if not 1 <= value <= LARGEST:
                raise UserError(f"strategy: {name} is {value}: must be from 1 to {LARGEST}")
        if self.schedule not in SCHEDULES:
            raise UserError(
                f"strategy: schedule is {self.schedule!r}: use one of {', '.join(SCHEDULES)}"
            )
        if self.precision not in PRECISIONS:
            raise UserError(
                f"strategy: precision is {self.precision!r}: use one of {', '.join(PRECISIONS)}"
            )
        if not 0 <= self.zero <= 3:
            raise UserError(f"strategy: zero is {self.zero}: must be from 0 to 3")
        if (self.schedule == "interleaved") != (self.chunks > 1):
            raise UserError(
                f"strategy: schedule {self.schedule} with {self.chunks} chunks: the schedule "
                "interleaved needs several chunks per rank, and only it has them"
            )
        if self.chunks > 1 and self.mesh.pp == 1:
            raise UserError("strategy: chunks need several pipeline ranks: set pp")
        if self.schedule == "interleaved":
            rounds = max(1, self.micro_batches // self.mesh.pp)
            if self.micro_batches % rounds:
                raise UserError(
                    f"strategy: schedule interleaved with {self.micro_batches} micro-batches: use "
                    f"a multiple of the {self.mesh.pp} pipeline ranks"
                )
        if self.zero == 3 and self.mesh.pp > 1:
            raise UserError("strategy: zero=3 with pipeline ranks is not simulated: use zero=1")
        for rule in self.rules:
            for axis, _ in rule.splits:
                if axis not in AXES[:-1]:
                    raise UserError(
                        f"strategy: {rule.pattern or 'root'}: no mesh axis {axis}: use one of "
                        f"{', '.join(AXES[:-1])}"
                    )
