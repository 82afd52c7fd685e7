"""torchtitan's benchmarks: Llama 3.1 with FSDP, context and tensor parallelism on H100.

Rows are used whose settings the simulator has: FSDP, TP and CP, without pipelines and async TP. The
GPUs are H100 with 96 GB of HBM2e (2.4 TB/s) and 500 W. What a row does not say is taken from
torchtitan of that time:

- Attention is FlashAttention-2, which reaches 35% of an H100's peak (Shah et al. 2024, arXiv
  2407.08608), and less backward. Context-parallel ranks hold equal parts of the causal mask, pass
  keys and values around, and merge the results of each step with 32 bits.
- With Float8, products of layers have 8-bit inputs; the vocabulary's have 16 bits.
- Without ``torch.compile``, norms, rotary positions and activations are several kernels each. How
  many bytes they move more is counted in ``_EAGER``.
- The cross entropy is several kernels with 32 bits.
- Selective recomputation repeats 37% of the products of a layer: those of each second one, of seven
  of different sizes. Its time is taken as that of recomputing the MLPs of every second layer (40%),
  and its memory as that of recomputing all MLPs: they keep 64 kB per token, and it keeps 62 kB.

One constant is fitted on the row with the fewest context-parallel ranks: the efficiency of 8-bit
products, which stands for their conversion, too. That of 16-bit products is the shipped one, for
the clocks that are left at 500 W. One constant is fitted for memory besides tensors.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from groundtruth_programs import naive, root
from groundtruth_scores import Score, at_peak, shares

from byteprophet.errors import UserError
from byteprophet.input_files import is_there, read_text
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.execute.simulate import simulate_program
from byteprophet.simulate.models.catalogue import MODELS
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.tree.one_line import parse_strategy
from byteprophet.simulate.tree.strategy import Rule, Strategy

_ATTENTION = 0.32
"""Of the peak: 35% forward (Shah et al. 2024), backward 63/73 of it, as on A100 (Dao 2023).
"""
_POWER = (500 / 700) ** (1 / 3)
"""How fast clocks are at 500 W in place of 700 W: power grows with their third power."""
_EAGER = {
    ("rms norm", "forward"): 34 / 4,
    ("rms norm", "backward"): 60 / 10,
    ("rotary", "forward"): 20 / 4,
    ("rotary", "backward"): 20 / 4,
    ("gated activation", "forward"): 10 / 6,
    ("gated activation", "backward"): 18 / 10,
}
"""Bytes per element that operators move without ``torch.compile``, over those of one kernel."""
_SELECTIVE = "layers.*[02468].mlp"
"""The MLPs of every second layer."""


@dataclass(frozen=True)
class Row:
    """A measurement.

    Attributes:
        text: what identifies the row.
        program: the job.
        kept: the job as it is for memory.
        compiled: whether ``torch.compile`` was used.
        measured_ns: the time of an iteration.
        memory_bytes: PyTorch's reserved memory; None: not given.
    """

    text: str
    program: Program
    kept: Program
    compiled: bool
    measured_ns: float
    memory_bytes: float | None


def rows(folder: Path) -> list[Row]:
    """The measurements in a folder that can be simulated."""
    found = []
    folder = folder / "torchtitan"
    path = folder / "index.csv"
    try:
        for table in csv.DictReader(read_text(path).splitlines()):
            path = folder / table["file"]
            text = table["headings"] + " " + table["context"]
            # What stands before the caption is about all tables.
            settings = _settings(text.rpartition("**Table")[2])
            if settings and "TPS/GPU" in table["columns"] and is_there(str(path)):
                lines = csv.DictReader(read_text(path).splitlines())
                found += [row for line in lines for row in _row(settings, line)]
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: not torchtitan's table: {error!r}") from None
    return found


@dataclass(frozen=True)
class _Settings:
    """What a table's caption says of all of its rows."""

    caption: str
    model: str
    gpus: int
    batch: int


def _settings(caption: str) -> _Settings | None:
    model = re.search(r"Llama ?3(?:\.1)? (8B|70B|405B) model", caption, re.IGNORECASE)
    gpus = re.search(r"(\d+) GPUs", caption)
    batch = re.search(r"[Ll]ocal batch size (\d+)", caption)
    if not (model and gpus and batch) or "PP" in caption:
        return None
    return _Settings(caption, f"llama3-{model[1].lower()}", int(gpus[1]), int(batch[1]))


def _row(settings: _Settings, row: Mapping[str, str]) -> Iterator[Row]:
    """The row, if it names nothing that is not simulated."""
    words = row.get("Parallelism", "") + " " + row.get("Techniques", "")
    if "Async" in words:
        return
    every = f"{settings.caption} {words}"
    degrees = dict(re.findall(r"(TP|CP) (\d+)", every))
    tp, cp = int(degrees.get("TP", 1)), int(degrees.get("CP", 1))
    precision = "fsdp2_fp8" if "Float8" in every else "fsdp2"
    recompute = "full" if "Full activation" in every else "none"
    selective = "Selective activation" in every
    strategy = parse_strategy(
        f"tp={tp} cp={cp} dp={settings.gpus // (tp * cp)} micro_batch={settings.batch} zero=3 "
        f"sp={int(tp > 1)} ring={int(cp > 1)} copies=1 recompute={recompute} precision={precision}",
        settings.gpus,
    )
    sequence = int(row.get("Sequence Length", "8192").replace(",", ""))
    tokens = strategy.samples * sequence / settings.gpus
    memory = row.get("Memory(GiB)", "")
    yield Row(
        f"{settings}{sequence}{words}",
        _program(settings.model, sequence, strategy, _SELECTIVE if selective else ""),
        _program(settings.model, sequence, strategy, "layers.*.mlp" if selective else ""),
        "torch.compile" in every,
        tokens / float(row["TPS/GPU"].replace(",", "")) * 1e9,
        float(memory) * 2**30 if memory else None,
    )


def _program(name: str, sequence: int, strategy: Strategy, recomputed: str) -> Program:
    """The job, in which nodes that match ``recomputed`` are, unless it is empty."""
    rules = [Rule(recomputed, recompute=True)] if recomputed else []
    strategy = replace(strategy, rules=(*strategy.rules, *rules))
    config = replace(MODELS[name], fused_loss=False)
    return compile_program(build(name, config, strategy.samples, sequence), strategy)


def machines(efficiency: float) -> Cluster:
    """H100 with HBM2e and 500 W, with another efficiency of 8-bit products."""
    cluster = find_cluster("dgx-h100")
    of_16_bits = cluster.gpu.matmul_efficiency * _POWER
    gpu = replace(
        cluster.gpu,
        memory_bytes=102_000_000_000,
        memory_bytes_per_s=2_400_000_000_000,
        matmul_efficiency=of_16_bits,
        fp8_flops_per_s=round(cluster.gpu.fp8_flops_per_s * efficiency / of_16_bits),
        attention_efficiency=_ATTENTION,
    )
    return replace(cluster, gpu=gpu)


def predict(some: Sequence[Row], cluster: Cluster) -> list[float]:
    """Predicted iteration times, in nanoseconds."""
    eager = replace(cluster, operators=_EAGER)
    return [
        float(simulate_program(row.program, cluster if row.compiled else eager).iteration_ns)
        for row in some
    ]


def fit(some: Sequence[Row]) -> float:
    """The efficiency with which the row with the fewest context-parallel ranks is right.

    Without a row with Float8, it is that of 16-bit products.
    """
    eight = [row for row in some if row.program.strategy.precision == "fsdp2_fp8"]
    if not eight:
        return find_cluster("dgx-h100").gpu.matmul_efficiency * _POWER
    first = min(eight, key=lambda row: row.program.strategy.mesh.cp)

    def error(efficiency: float) -> float:
        return predict([first], machines(efficiency))[0] - first.measured_ns

    return root(error, 0.05, 5.0)


def _peaks(some: Sequence[Row]) -> list[float]:
    found = []
    for row in some:
        memory = simulate_program(row.kept, machines(0.5)).memory
        found.append(float(max(one.total - one.reserved for one in memory)))
    return found


def score_torchtitan(folder: Path, fit_folder: Path | None) -> list[Score]:
    """Errors of times and memory; each row is predicted with constants of all others."""
    tested = rows(folder)
    if fit_folder is None:
        pairs = [([one for one in tested if one is not row], [row]) for row in tested]
    else:
        pairs = [(rows(fit_folder), tested)]
    times: list[list[float]] = [[], [], [], []]
    memory: list[list[float]] = [[], [], []]
    efficiencies, besides = [], []
    shipped = find_cluster("dgx-h100").gpu.matmul_efficiency
    for fitted, held_out in pairs:
        efficiencies.append(fit(fitted))
        measured = [row.measured_ns for row in held_out]
        clusters = [machines(one) for one in (efficiencies[-1], shipped)]
        for errors, cluster in zip(times, [*clusters, at_peak(clusters[0])], strict=False):
            errors += shares(predict(held_out, cluster), measured)
        times[3] += shares(naive(fitted, held_out), measured)
        known = [row for row in fitted if row.memory_bytes]
        sizes = [row.memory_bytes or 0.0 for row in known]
        besides.append(float(np.median(np.subtract(sizes, _peaks(known)))))
        wanted = [row for row in held_out if row.memory_bytes]
        measured = [row.memory_bytes or 0.0 for row in wanted]
        peaks = _peaks(wanted)
        memory[0] += shares([one + besides[-1] for one in peaks], measured)
        memory[1] += shares([float(np.median(sizes))] * len(measured), measured)
        memory[2] += shares(peaks, measured)
    named = f"torchtitan: efficiency {np.median(efficiencies):.2f}, "
    named += f"{np.median(besides) / 2**30:.1f} GiB besides tensors"
    return [
        Score("torchtitan, H100: time", times[0], times[3], times[1], named, times[2]),
        Score("torchtitan, H100: memory", memory[0], memory[1], memory[2]),
    ]
