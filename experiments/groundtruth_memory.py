"""Peak memory of Megatron-LM's functional tests: GPT with tensor, pipeline and context parallelism.

Rows are used if all their arguments are among those that the simulator has a setting for, or have
no effect on memory. Left out are those whose vocabulary is not in the table (NullTokenizer), fused
cross entropy, and runs in the older "lts" container, whose attention kernels are not known. The
rank that reports is the last one. PyTorch's peak has no CUDA context; one constant stands for what
it has besides tensors (workspaces), and is fitted.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from groundtruth_scores import Score, fitted_and_tested, shares

from byteprophet.errors import UserError
from byteprophet.input_files import read_text
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.execute.simulate import simulate
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.models.transformer_config import TransformerConfig
from byteprophet.simulate.tree.one_line import parse_strategy

_VOCABULARY = 50257
_MARGIN = 0.05
"""Within which a job that is said to fit must not take more."""
_USED = """
attention-backend attention-dropout attention-softmax-in-fp32 bf16 context-parallel-size
disable-bias-linear global-batch-size group-query-attention hidden-dropout hidden-size
max-position-embeddings micro-batch-size no-gradient-accumulation-fusion num-attention-heads
num-layers num-layers-per-virtual-pipeline-stage num-query-groups overlap-grad-reduce
overlap-param-gather pipeline-model-parallel-size position-embedding-type recompute-granularity
recompute-method recompute-num-layers seq-length sequence-parallel tensor-model-parallel-size
transformer-impl untie-embeddings-and-output-weights use-distributed-optimizer use-mcore-models
"""
_NO_EFFECT = """
adam-beta1 adam-beta2 adam-eps apply-query-key-layer-scaling async-strategy
auto-detect-ckpt-format calculate-per-token-loss check-weight-hash-across-dp-replicas-interval
ckpt-assume-constant-structure ckpt-format clip-grad ddp-average-in-collective deterministic-mode
dist-ckpt-optim-fully-reshardable dist-ckpt-strictness distributed-backend eval-interval
eval-iters exit-duration-in-mins exit-interval init-method-std log-interval
log-memory-to-tensorboard log-num-zeros-in-grad log-params-norm log-progress log-throughput
log-timers-to-tensorboard log-validation-ppl-to-tensorboard logging-level lr lr-decay-iters
lr-decay-samples lr-decay-style lr-warmup-fraction lr-warmup-iters lr-warmup-samples manual-gc
manual-gc-interval min-lr mock-data no-check-for-nan-in-loss-and-grad no-mmap-bin-files
num-workers seed split tensorboard-log-interval timing-log-level train-iters train-samples
use-checkpoint-args use-checkpoint-opt_param-scheduler use-persistent-ckpt-worker verify-integrity
weight-decay async-ckpt-use-cpu-shm
"""


@dataclass(frozen=True)
class Row:
    """A measurement, and what the simulator says: all tensors, and parameters' share of them."""

    text: str
    measured_bytes: float
    predicted_bytes: float
    parameter_bytes: float


def rows(folder: Path) -> list[Row]:
    """The measurements in a folder that can be simulated."""
    path = folder / "megatron_golden" / "golden_values.csv"
    try:
        found = [_row(row) for row in csv.DictReader(read_text(path).splitlines()) if _usable(row)]
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: not a table of Megatron-LM's tests: {error!r}") from None
    return found


def _usable(row: Mapping[str, str]) -> bool:
    given = {
        name.removeprefix("arg:")
        for name, value in row.items()
        if name.startswith("arg:") and value not in ("", "False")
    }
    return (
        row["model"] == "gpt"
        and not row["golden"].startswith("lts")
        and bool(row["mem_max_allocated_bytes"])
        and given <= {*_USED.split(), *_NO_EFFECT.split()}
    )


def _row(row: Mapping[str, str]) -> Row:
    def number(name: str, default: int = 1) -> int:
        return int(row[f"arg:{name}"] or default)

    def on(name: str) -> bool:
        return row[f"arg:{name}"] == "True"

    tp, pp = number("tensor-model-parallel-size"), number("pipeline-model-parallel-size")
    cp, layers = number("context-parallel-size"), number("num-layers")
    gpus = int(row["nodes"] or 1) * int(row["gpus_per_node"] or 8)
    dp, micro_batch = gpus // (tp * pp * cp), number("micro-batch-size")
    chunks = layers // pp // number("num-layers-per-virtual-pipeline-stage", layers // pp)
    recompute = "full" if row["arg:recompute-granularity"] else "none"
    sequence = tp > 1 and on("sequence-parallel")
    strategy = parse_strategy(
        f"tp={tp} pp={pp} cp={cp} dp={dp} micro_batch={micro_batch} "
        f"micro_batches={number('global-batch-size') // (dp * micro_batch)} chunks={chunks} "
        f"schedule={'interleaved' if chunks > 1 else '1f1b'} sp={int(sequence)} "
        f"zero={int(on('use-distributed-optimizer'))} recompute={recompute}",
        gpus,
    )
    hidden, heads = number("hidden-size"), number("num-attention-heads")
    rotary = row["arg:position-embedding-type"] == "rope"
    unfused = row["arg:attention-backend"] == "unfused" or row["arg:transformer-impl"] == "local"
    config = TransformerConfig(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=number("num-query-groups") if on("group-query-attention") else heads,
        inner=4 * hidden,
        vocabulary=-(-_VOCABULARY // (128 * tp)) * 128 * tp,
        sequence=number("seq-length"),
        positions=0 if rotary else number("max-position-embeddings"),
        bias=not on("disable-bias-linear"),
        tied=not on("untie-embeddings-and-output-weights"),
        fused_attention=not unfused,
        dropout=row["arg:hidden-dropout"] != "0.0",
    )
    model = build("gpt", config, strategy.samples)
    memory = simulate(model, strategy, find_cluster("dgx-a100")).memory[-1]
    static = memory.parameters + memory.gradients + memory.optimizer_state
    settings = ",".join(value for name, value in row.items() if name.startswith("arg:"))
    return Row(
        settings, float(row["mem_max_allocated_bytes"]), memory.total - memory.reserved, static
    )


def score_memory(folder: Path, fit_folder: Path | None) -> list[Score]:
    """Errors of held-out rows. Equal configurations are in one half."""
    others = None if fit_folder is None else rows(fit_folder)
    pairs = fitted_and_tested(rows(folder), others)
    errors: list[float] = []
    naive: list[float] = []
    shipped: list[float] = []
    constants = []
    for fitted, held_out in pairs:
        measured = [row.measured_bytes for row in held_out]
        besides = float(np.median([row.measured_bytes - row.predicted_bytes for row in fitted]))
        scale = float(np.median([row.measured_bytes / row.parameter_bytes for row in fitted]))
        errors += shares(_predict(held_out, besides), measured)
        naive += shares([scale * row.parameter_bytes for row in held_out], measured)
        shipped += shares(_predict(held_out, 0.0), measured)
        constants.append(f"{besides / 1e6:.0f} MB")
    words = "Megatron-LM's tests: peak memory"
    more = sum(error < 1 / (1 + _MARGIN) - 1 for error in errors)
    named = f"memory besides tensors: {', '.join(constants)}; "
    named += f"{more} of {len(errors)} rows took more than {_MARGIN:.0%} above the prediction"
    return [Score(words, errors, naive, shipped, named)]


def _predict(some: Sequence[Row], besides_bytes: float) -> list[float]:
    return [row.predicted_bytes + besides_bytes for row in some]
