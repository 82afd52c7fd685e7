"""A parallel strategy as data: a mesh, a schedule, and rules for nodes of the model's tree."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from byteprophet.errors import UserError
from byteprophet.simulate.operation.mesh import AXES, Mesh

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb1p")
"""``interleaved``: 1F1B with several chunks per rank. ``zb1p``: zero bubble, which delays the
gradients of parameters."""
RESHARD = ("default", "always", "never")
"""torchtitan's choices for ``fsdp_reshard_after_forward``."""
LARGEST = 1 << 20
"""Of degrees and numbers of micro-batches."""
_BUCKET_MB = 25


@dataclass(frozen=True)
class Precision:
    """The bytes per parameter of what a rank keeps, and of what it sends.

    Attributes:
        parameter_bytes: the parameters that the forward pass uses.
        gradient_bytes: the gradients.
        state_bytes: the optimizer's state, with its own copy of the parameters if it has one.
        sent_gradient_bytes: gradients that are sent.
        sent_parameter_bytes: parameters that are sent, but for weights of linear layers.
        sent_weight_bytes: weights of linear layers that are sent (``LocalParameter.linear``).
        product_bytes: the inputs of matrix products with parameters, the vocabulary's excepted.
        added_bytes: what an operator of its own reads and writes per parameter and micro-batch, to
            add its gradients to earlier ones; 0: the product that makes them does that.
    """

    parameter_bytes: int
    gradient_bytes: int
    state_bytes: int
    sent_gradient_bytes: int
    sent_parameter_bytes: int
    sent_weight_bytes: int = 2
    product_bytes: int = 2
    added_bytes: int = 0


PRECISIONS = {
    # Megatron-LM: bf16 parameters, fp32 gradients; Adam's two moments and an fp32 copy.
    "bf16": Precision(2, 4, 12, 4, 2),
    # Megatron-LM of 2022 with fp16: gradients are kept and sent as fp16.
    "fp16": Precision(2, 2, 16, 2, 2, added_bytes=6),
    # Megatron-LM without gradient accumulation fusion: bf16 gradients are read, fp32 ones updated.
    "bf16_unfused": Precision(2, 4, 12, 4, 2, added_bytes=10),
    # DeepSpeed's BF16 optimizer: bf16 gradients, which it adds up as fp32, and clears.
    "deepspeed_bf16": Precision(2, 6, 12, 4, 2, added_bytes=12),
    # FSDP2 with mixed precision: fp32 shards, gathered as bf16; gradients reduced as fp32.
    "fsdp2": Precision(4, 4, 8, 4, 2),
    # Megatron-LM with Transformer Engine: as bf16, but matrix products of layers have 8-bit inputs.
    "fp8": Precision(2, 4, 12, 4, 2, product_bytes=1),
    # torchao's float8 with FSDP2: as fsdp2, but linear layers have 8-bit inputs, and their weights
    # are gathered with 8 bits (``enable_fsdp_float8_all_gather``); all others with 16.
    "fsdp2_fp8": Precision(4, 4, 8, 4, 2, sent_weight_bytes=1, product_bytes=1),
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
            only its inputs are kept; None: not said.
        stage: the pipeline stage of the node; None: as above.
        micro_batches: how many micro-batches of its own the node runs in; 0: not said.
        max_ongoing: how many of these may be between their forward and backward pass; 0: all.
        along: the dimension that these are parts of.
    """

    pattern: str
    splits: tuple[tuple[str, tuple[str, ...]], ...] = ()
    recompute: bool | None = None
    stage: int | None = None
    micro_batches: int = 0
    max_ongoing: int = 0
    along: str = "batch"


@dataclass(frozen=True)
class Strategy:
    """How a model is trained.

    Attributes:
        mesh: the degrees of parallelism.
        rules: the settings of nodes; of two for one node, the later one holds.
        micro_batches: micro-batches per iteration.
        micro_batch: samples of a micro-batch on each data-parallel rank.
        schedule: one of ``SCHEDULES``.
        max_ongoing: with ``1f1b``, how many micro-batches of a stage may be between their forward
            and their backward pass; 0: as many as the schedule has.
        chunks: stages per pipeline rank.
        zero: what is sharded over data-parallel ranks. 1: optimizer state; 2: gradients, too; 3:
            parameters, too, as FSDP does.
        all_reduce: with ``zero`` 1, whether gradients are all-reduced, not reduce-scattered: so
            DeepSpeed does, whose stage 1 and whose BF16 optimizer reduce whole buckets.
        overlap: whether gradients (and with ``zero`` 3, parameters) are sent while others compute.
        precision: a name in ``PRECISIONS``.
        scatter_gather: whether tensor-parallel ranks that hold the same activations each send a
            part of them to the next stage, where they are gathered. Megatron-LM did so before it
            had sequence parallelism.
        reshard: with ``zero`` 3, whether parameters are sharded again after the forward pass:
            ``always``, ``never``, or by ``default`` only without pipeline ranks, as in torchtitan.
        ring: whether context-parallel ranks pass keys and values around while they compute
            attention, instead of gathering all of them before.
        bucket_mb: gradients that travel together without ``zero`` 3, in MiB, as
            DistributedDataParallel's ``bucket_cap_mb``.
        overlap_p2p: whether a stage receives activations and gradients while it computes. PyTorch's
            GPipe and 1F1B, and Megatron-LM's 1F1B, ask for them when they need them.
        posted_receives: whether a stage asks for a message where the runtime of
            ``torch.distributed.pipelining`` does, which may be long before it needs it, but never
            in the middle of an action. Only for its schedules ``interleaved`` and ``zb1p``.
        reduce_in_backward: whether a stage's last backward pass ends when its gradients are
            reduced, as with DistributedDataParallel. Then the stage before gets its own.
        copies: whether copies around collectives count that PyTorch makes: FSDP2 copies what it
            gathers out of a flat buffer, and gradients into one; a functional collective along
            another dimension than the first copies the whole tensor; gradients of several
            micro-batches are added up in an operator of their own; and so are the results of the
            steps of ring attention. Inputs that were gathered are also kept so, where Megatron-LM
            keeps parts and gathers them again.
        launch_blocking: whether the GPU waits for the host at every launch.
        eager: whether operators count that PyTorch runs without compilation, besides those of
            Megatron-LM: sums of the gradients of biases, copies of the gradients of queries, keys
            and values, one more activation of a gated MLP, copies of the optimizer's fp32
            parameters to 16 bits, and clearing fp32 gradients.
    """

    mesh: Mesh
    rules: tuple[Rule, ...] = ()
    micro_batches: int = 1
    micro_batch: int = 1
    schedule: str = "1f1b"
    max_ongoing: int = 0
    chunks: int = 1
    zero: int = 0
    all_reduce: bool = False
    overlap: bool = True
    precision: str = "bf16"
    scatter_gather: bool = False
    reshard: str = "default"
    ring: bool = False
    bucket_mb: int = _BUCKET_MB
    overlap_p2p: bool = True
    posted_receives: bool = False
    reduce_in_backward: bool = False
    copies: bool = False
    launch_blocking: bool = False
    eager: bool = False

    @property
    def reduce_scatters(self) -> bool:
        """Whether a data-parallel rank gets only its part of the sum of all gradients."""
        return self.zero > 0 and not self.all_reduce

    @property
    def reshards(self) -> bool:
        """Whether parameters that were gathered are sharded again after the forward pass."""
        return self.reshard == "always" or (self.reshard == "default" and self.mesh.pp == 1)

    @property
    def delays_weights(self) -> bool:
        """Whether gradients of parameters are made later than those of inputs."""
        return self.schedule == "zb1p"

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
        if self.all_reduce and self.zero > 1:
            raise UserError(
                f"strategy: zero={self.zero} with all_reduce: gradients are sharded, and so they "
                "are reduce-scattered; use zero=1"
            )
        if (self.schedule == "interleaved") != (self.chunks > 1):
            raise UserError(
                f"strategy: schedule {self.schedule} with {self.chunks} chunks: the schedule "
                "interleaved needs several chunks per rank, and only it has them"
            )
        if self.chunks > 1 and self.mesh.pp == 1:
            raise UserError("strategy: chunks need several pipeline ranks: set pp")
        if self.schedule == "interleaved" and not self._has_equal_rounds(self.micro_batches):
            more = next(filter(self._has_equal_rounds, count(self.micro_batches)))
            raise UserError(
                f"strategy: schedule interleaved with {self.micro_batches} micro-batches on "
                f"{self.mesh.pp} pipeline ranks: they make no equal rounds; use {more}, "
                f"or a multiple of the {self.mesh.pp} ranks"
            )
        if not 0 <= self.max_ongoing <= LARGEST:
            raise UserError(
                f"strategy: max_ongoing is {self.max_ongoing}: must be from 0 to {LARGEST}"
            )
        if self.max_ongoing and self.schedule != "1f1b":
            raise UserError(
                f"strategy: schedule {self.schedule} with max_ongoing: only 1f1b can be limited"
            )
        if self.posted_receives and self.schedule not in ("interleaved", "zb1p"):
            raise UserError(
                f"strategy: schedule {self.schedule} with posted_receives: only interleaved and "
                "zb1p have them"
            )
        if self.reduce_in_backward and self.schedule == "zb1p":
            raise UserError(
                "strategy: schedule zb1p with reduce_in_backward: DistributedDataParallel does not "
                "reduce gradients that are delayed"
            )
        if self.reshard not in RESHARD:
            raise UserError(
                f"strategy: reshard is {self.reshard!r}: use one of {', '.join(RESHARD)}"
            )
        if not self.overlap and self.zero >= 2:
            raise UserError(
                f"strategy: zero={self.zero} with overlap=0: it sends gradients as they are made; "
                "use zero=0 or 1"
            )
        self._check_effects()
        for rule in self.rules:
            self._check_rule(rule)
            for axis, _ in rule.splits:
                if axis not in AXES[:-1]:
                    raise UserError(
                        f"strategy: {rule.pattern or 'root'}: no mesh axis {axis}: use one of "
                        f"{', '.join(AXES[:-1])}"
                    )

    def _has_equal_rounds(self, micro_batches: int) -> bool:
        """Whether the schedule interleaved can have so many micro-batches."""
        return micro_batches % max(1, micro_batches // self.mesh.pp) == 0

    def _check_effects(self) -> None:
        """Raises ``UserError`` for settings that would change nothing."""
        pipelined = self.mesh.pp > 1
        given_mb = self.bucket_mb != _BUCKET_MB
        for setting, given, has_effect, needed in (
            (f"reshard={self.reshard}", self.reshard != "default", self.zero == 3, "zero=3"),
            ("all_reduce=1", self.all_reduce, self.zero > 0, "zero=1"),
            ("ring=1", self.ring, self.mesh.cp > 1, "cp > 1"),
            (f"bucket_mb={self.bucket_mb}", given_mb, self.zero < 3, "zero < 3"),
            ("scatter_gather=1", self.scatter_gather, pipelined, "pp > 1"),
            ("scatter_gather=1", self.scatter_gather, self.mesh.tp > 1, "tp > 1"),
            (f"max_ongoing={self.max_ongoing}", self.max_ongoing > 0, pipelined, "pp > 1"),
            ("posted_receives=1", self.posted_receives, pipelined, "pp > 1"),
            ("overlap_p2p=0", not self.overlap_p2p, pipelined, "pp > 1"),
            ("overlap_p2p=0", not self.overlap_p2p, not self.posted_receives, "posted_receives=0"),
            ("reduce_in_backward=1", self.reduce_in_backward, pipelined, "pp > 1"),
            ("reduce_in_backward=1", self.reduce_in_backward, not self.zero, "zero=0"),
            ("reduce_in_backward=1", self.reduce_in_backward, self.overlap, "overlap=1"),
        ):
            if given and not has_effect:
                raise UserError(f"strategy: {setting} has no effect without {needed}")

    def _check_rule(self, rule: Rule) -> None:
        """Raises ``UserError`` for settings that its nodes cannot have."""
        if not rule.pattern and rule.recompute:
            raise UserError(
                "strategy: root: recompute: the whole model cannot be recomputed at once; name its "
                "layers, such as layers.*"
            )
        if not rule.pattern and (rule.micro_batches or rule.max_ongoing):
            raise UserError("strategy: root: its micro-batches are those of the whole strategy")
        if not 0 <= rule.micro_batches <= LARGEST:
            raise UserError(
                f"strategy: {rule.pattern}: micro_batches is {rule.micro_batches}: must be from 1 "
                f"to {LARGEST}"
            )
        if not 0 <= rule.max_ongoing <= rule.micro_batches:
            raise UserError(
                f"strategy: {rule.pattern}: max_ongoing is {rule.max_ongoing}: must be from 1 to "
                f"the {rule.micro_batches} micro-batches of the node"
            )
