"""BLOOM's rehearsal: Megatron-DeepSpeed's GPT with 176 to 206B parameters on 384 A100.

Of the chronicle's tables, rows are used whose layers and hidden size are stated, with the row or
above it. What they do not say is taken from elsewhere:

- From the text: nodes of 8 A100 and 4 Omni-Path adapters of 100 Gb/s, fp16, ZeRO 1 unless a column
  says otherwise, full recomputation, sequences of 2,048 tokens, 64 heads, a vocabulary of 250,880,
  and CUDA_LAUNCH_BLOCKING=1, because jobs hung without it. One row repeats an earlier one with
  seconds and TFLOPs exchanged; the earlier one holds. Until 25 February, nodes were 1 to 5% slower.
- From the project's own benchmark (experiments/bandwidth/all_reduce_bench-a100-n4.txt in its
  repository): an all-reduce of 4 GB on 4 of these nodes had a bus bandwidth of 40.5 Gb/s. Its log
  shows two rings over one adapter. So an adapter is taken to reach this much.
- From the project's script (train/tr11-176B-ml/tr11-176B-ml.slurm in its repository): ALiBi.
- From DeepSpeed's source, too: a stage sends and receives while it is idle, tensor-parallel ranks
  send parts of activations, and an operator adds up gradients.
- From DeepSpeed's source of that time: ZeRO 1 all-reduces gradients and then gathers parameters.
  Its engine sets ``contiguous_gradients`` to False for stage 1, so that buckets go to
  ``buffered_reduce_fallback``, which all-reduces them. Its BF16 optimizer all-reduces, too.
- From Sailor's table: how much longer norms, dropout with bias and residual sum, softmax and GELU
  take than their bytes, and how long a launch takes of which the host waits for the end. That is
  an assumption: the rehearsal's software is a fork of Megatron-LM of 2021, which had the same
  operators, and its hosts are others. vTrain's rows are of 2022, when norms and dropout had others.
- If the layers do not divide evenly, embedding and head count as layers, or else the last stage has
  fewer. Where they count as layers, the memory is that of DeepSpeed's BF16 optimizer, which keeps
  gradients as fp32 as well. That is an assumption: it was seen in the errors.

Times are predicted with no fit, and with one scale. The memory that was read includes libraries'
and what PyTorch keeps cached, for which one constant is fitted. A row that ran must fit into
memory, and one that did not must not.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import groundtruth_sailor
import numpy as np
from groundtruth_programs import flops_of
from groundtruth_scores import Score, at_peak, fitted_and_tested, shares

from byteprophet.errors import UserError
from byteprophet.input_files import read_text
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.execute.result import Simulated
from byteprophet.simulate.execute.simulate import simulate_program
from byteprophet.simulate.models.catalogue import gpt
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.tree.one_line import parse_strategy
from byteprophet.simulate.tree.strategy import Rule, Strategy

_VOCABULARY = 250_880
_HEADS = 64
_NAME = "BLOOM's rehearsal, 384 A100"
_ADAPTER_SHARE = 0.405
"""What an Omni-Path adapter reached of its 100 Gb/s, see above."""
_SHIPPED = "a100-4xhdr"
"""The built-in cluster whose constants the errors "as shipped" have."""
_REPAIRED, _SLOWER = "02-25", 1.03
"""The day from which on nodes were 1 to 5% faster; before, an iteration took the middle of that
longer. The text says so ("A100s PCI-Express/NUMA was improved today"); it was not fitted."""


@dataclass(frozen=True)
class Row:
    """A measurement; None: it has no time or no memory.

    Attributes:
        text: what identifies the configuration; repeated measurements have the same.
        program: the job.
        measured_s: the iteration time.
        memory_bytes: the memory in use.
        fits: whether it ran.
        slower: how much longer an iteration took on that day than later.
    """

    text: str
    program: Program
    measured_s: float | None
    memory_bytes: float | None
    fits: bool
    slower: float = 1.0


def rows(folder: Path) -> list[Row]:
    """The measurements in a folder that can be simulated."""
    path = folder / "bigscience" / "bloom_prequel_384xA100.csv"
    found = []
    stated: dict[str, tuple[int, int]] = {}
    speeds: set[tuple[str, str]] = set()
    try:
        for row in csv.DictReader(read_text(path).splitlines()):
            if (row["Sec/it"], row["TFLOPs"]) in speeds:
                row["Sec/it"], row["TFLOPs"] = row["TFLOPs"], row["Sec/it"]
            speeds.add((row["TFLOPs"], row["Sec/it"]))
            sizes = _sizes(row, stated)
            tp, pp = int(row["TP"] or 0), int(row["PP"] or 0)
            gpus = 8 * int(row["Nodes"] or 0)
            if sizes is None or not row["MBS"] or not gpus:
                continue
            if int(row["DP"] or 0) * tp * pp != gpus:
                continue
            found.append(_row(row, sizes, gpus))
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: not the chronicle's table: {error!r}") from None
    return found


def _sizes(row: Mapping[str, str], stated: dict[str, tuple[int, int]]) -> tuple[int, int] | None:
    """The layers and hidden size of a row: its own, or those above of a model of its size."""
    hidden = re.findall(r"HIDDEN ?= ?(\d+)", row["_context"])
    layers = re.findall(r"LAYERS ?= ?(\d+)", row["_context"])
    own_hidden = row["NHIDDEN"] or (hidden[-1] if hidden else "")
    own_layers = row["Layers"] or (layers[-1] if layers else "")
    if own_hidden and own_layers:
        stated[row["Size"]] = int(own_layers), int(own_hidden)
    return stated.get(row["Size"])


def _row(row: Mapping[str, str], sizes: tuple[int, int], gpus: int) -> Row:
    layers, hidden = sizes
    heads, zero = int(row["NHEADS"] or _HEADS), int(row["ZS"] or 1)
    tp, pp, micro_batch = (int(row[name]) for name in ("TP", "PP", "MBS"))
    dp = gpus // (tp * pp)
    precision = "deepspeed_bf16" if layers % pp and (layers + 2) % pp == 0 else "fp16"
    pipelined = f"overlap_p2p=0 scatter_gather={int(tp > 1)} " if pp > 1 else ""
    strategy = parse_strategy(
        f"tp={tp} pp={pp} dp={dp} micro_batch={micro_batch} zero={zero} "
        f"micro_batches={int(row['GBS']) // (dp * micro_batch)} "
        f"recompute=full overlap={int(zero > 1)} {pipelined}launch_blocking=1 "
        f"all_reduce={int(zero == 1)} "
        f"precision={precision}",
        gpus,
    )
    strategy = replace(strategy, rules=(*strategy.rules, *_stages(layers, strategy)))
    config = replace(
        gpt(layers, hidden, heads, vocabulary=_VOCABULARY),
        positions=0,
        alibi=True,
        fused_attention=False,
        fused_loss=False,
        dropout=True,
    )
    model = build("gpt", config, strategy.samples)
    seconds, memory = row["Sec/it"], row["Mem"].removesuffix("GB")
    names = ("GPUs", "Size", "DP", "TP", "PP", "MBS", "GBS", "Nodes", "ZS")
    return Row(
        ",".join([*(row[name] for name in names), str(layers), str(hidden), str(heads)]),
        compile_program(model, strategy),
        float(seconds) if seconds not in ("", "x") else None,
        float(memory) * 2**30 if memory.isdecimal() else None,
        memory != "OOM",
        _SLOWER if "" < row["Notes"] < _REPAIRED else 1.0,
    )


def _stages(layers: int, strategy: Strategy) -> list[Rule]:
    """The stage of each layer, if they do not divide evenly."""
    pp = strategy.mesh.pp
    if layers % pp == 0:
        return []
    before = int((layers + 2) % pp == 0)
    size = ceil((layers + 2 * before) / pp)
    return [Rule(f"layers.{at}", stage=(at + before) // size) for at in range(layers)]


def cluster(folder: Path) -> Cluster:
    """Jean Zay's nodes with A100: the built-in cluster with other adapters, operators and launches.

    ``folder`` has Sailor's table, from which operators' times and that of a launch come.
    """
    parts = groundtruth_sailor.fit(groundtruth_sailor.rows(folder))
    found = find_cluster(_SHIPPED)
    gpu = replace(found.gpu, launch_ns=groundtruth_sailor.blocked_launch_ns(folder, parts))
    network = replace(found.network, adapter_bits_per_s=100_000_000_000, efficiency=_ADAPTER_SHARE)
    return replace(found, gpu=gpu, network=network, operators=parts.operators)


def _seconds(row: Row) -> float:
    return row.measured_s or 0.0


def score_bigscience(folder: Path, fit_folder: Path | None) -> list[Score]:
    """Errors of times without a fit and with one scale, and of memory."""
    tested = rows(folder)
    others = None if fit_folder is None else rows(fit_folder)
    machines = cluster(fit_folder or folder)
    peak, shipped = at_peak(machines), find_cluster(_SHIPPED)

    def predicted_s(row: Row) -> float:
        return seconds[id(row)] * row.slower

    def shipped_s(row: Row) -> float:
        return simulate_program(row.program, shipped).iteration_ns / 1e9 * row.slower

    every = {id(row): simulate_program(row.program, machines) for row in (*tested, *(others or ()))}
    seconds = {key: one.iteration_ns / 1e9 for key, one in every.items()}
    timed = [row for row in tested if row.measured_s is not None]
    fitted = None if others is None else [row for row in others if row.measured_s is not None]
    unfitted: list[list[float]] = [[], [], [], []]
    scaled: list[float] = []
    scales = []
    for known, held_out in fitted_and_tested(timed, fitted):
        scale = float(np.median([_seconds(row) / predicted_s(row) for row in known]))
        rate = np.median([flops_of(row.program) / _seconds(row) for row in known])
        ideal = [simulate_program(row.program, peak) for row in held_out]
        measured = [_seconds(row) for row in held_out]
        unfitted[0] += shares([predicted_s(row) for row in held_out], measured)
        unfitted[1] += shares([flops_of(row.program) / rate for row in held_out], measured)
        unfitted[2] += shares([one.iteration_ns / 1e9 for one in ideal], measured)
        unfitted[3] += shares([shipped_s(row) for row in held_out], measured)
        scaled += shares([scale * predicted_s(row) for row in held_out], measured)
        scales.append(f"{scale:.3f}")
    plain, of_naive, ideal_errors, of_shipped = unfitted
    words = f"BLOOM: launch_ns {machines.gpu.launch_ns}, scale {', '.join(scales)}; "
    words += _optima(timed, seconds)
    return [
        Score(f"{_NAME}: no fit", plain, of_naive, of_shipped, "", ideal_errors),
        Score(f"{_NAME}: one scale", scaled, of_naive, of_shipped, words, ideal_errors),
        _memory_score(tested, others, every, machines),
    ]


def _optima(timed: Sequence[Row], seconds: Mapping[int, float]) -> str:
    """How many times the best micro-batch of equal jobs is right, and what the others cost."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in timed:
        fields = row.text.split(",")
        groups[tuple(fields[:5] + fields[6:])].append(row)
    groups = {key: some for key, some in groups.items() if len({row.text for row in some}) > 1}
    regrets = []
    for some in groups.values():
        chosen = min(some, key=lambda row: seconds[id(row)])
        regrets.append(_seconds(chosen) / min(map(_seconds, some)) - 1)
    right = sum(regret < 0.01 for regret in regrets)
    return (
        f"micro-batch of {right} of {len(regrets)} jobs right, mean regret {np.mean(regrets):.1%}"
    )


def _memory_score(
    tested: Sequence[Row],
    others: Sequence[Row] | None,
    every: Mapping[int, Simulated],
    machines: Cluster,
) -> Score:
    """Errors of held-out rows with the memory besides tensors of the others, and which jobs fit."""
    limit, reserved = machines.gpu.memory_bytes, machines.gpu.reserved_bytes
    peaks = {
        key: float(max(one.total - one.reserved for one in run.memory))
        for key, run in every.items()
    }
    errors: list[float] = []
    naive: list[float] = []
    shipped: list[float] = []
    constants = []
    failed = found = wrong = 0
    for fitted, held_out in fitted_and_tested(tested, others):
        sizes = [(row.memory_bytes, peaks[id(row)]) for row in fitted if row.memory_bytes]
        besides = float(np.median([size - peak for size, peak in sizes]))
        typical = float(np.median([size for size, _ in sizes]))
        constants.append(f"{besides / 2**30:.1f}")
        known = [row for row in held_out if row.memory_bytes]
        measured = [row.memory_bytes or 0.0 for row in known]
        errors += shares([peaks[id(row)] + besides for row in known], measured)
        naive += shares([typical] * len(measured), measured)
        shipped += shares([peaks[id(row)] + reserved for row in known], measured)
        fits = [(row.fits, peaks[id(row)] + besides <= limit) for row in held_out]
        failed += sum(not did for did, _ in fits)
        found += sum(not did and not does for did, does in fits)
        wrong += sum(did is not does for did, does in fits)
    return Score(
        "BLOOM's rehearsal: memory",
        errors,
        naive,
        shipped,
        f"BLOOM: {', '.join(constants)} GiB besides tensors; {found} of {failed} jobs that ran "
        f"out of memory found; {wrong} of {len(tested)} rows wrong",
    )
