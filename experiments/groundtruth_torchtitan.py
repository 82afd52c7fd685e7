"""torchtitan's benchmarks: Llama 3.1 with FSDP, context and tensor parallelism on H100.

Rows are used whose settings the simulator has: FSDP, TP and CP, without pipelines and async TP.
Selective recomputation is taken as none. The GPUs are H100 with 96 GB of HBM2e (2.4 TB/s, 500 W).
Most rows use Float8, for which the simulator has no rates. So one constant is fitted on the other
rows, the efficiency of matrix products and attention, and one for memory besides tensors.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from groundtruth_programs import naive, predict, with_efficiency
from groundtruth_scores import Score, at_peak, shares
from scipy.optimize import brentq

from byteprophet.errors import UserError
from byteprophet.input_files import is_there, read_text
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.execute.simulate import simulate_program
from byteprophet.simulate.models.catalogue import MODELS
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.tree.one_line import parse_strategy


@dataclass(frozen=True)
class Row:
    """A measurement: the time of an iteration, and PyTorch's reserved memory (None: not given)."""

    text: str
    program: Program
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
            settings = _settings(table["headings"] + " " + table["context"])
            if settings and "TPS/GPU" in table["columns"] and is_there(str(path)):
                lines = csv.DictReader(read_text(path).splitlines())
                found += [row for line in lines for row in _row(settings, line)]
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: not torchtitan's table: {error!r}") from None
    return found


@dataclass(frozen=True)
class _Settings:
    model: str
    gpus: int
    batch: int
    recompute: str


def _settings(text: str) -> _Settings | None:
    model = re.search(r"Llama ?3(?:\.1)? (8B|70B|405B) model", text, re.IGNORECASE)
    gpus = re.search(r"(\d+) GPUs", text)
    batch = re.search(r"[Ll]ocal batch size (\d+)", text)
    if not (model and gpus and batch) or "PP" in text:
        return None
    recompute = "full" if "Full activation" in text else "none"
    return _Settings(f"llama3-{model[1].lower()}", int(gpus[1]), int(batch[1]), recompute)


def _row(settings: _Settings, row: Mapping[str, str]) -> Iterator[Row]:
    """The row, if it names nothing that is not simulated."""
    words = row.get("Parallelism", "") + " " + row.get("Techniques", "")
    if "Async" in words:
        return
    degrees = dict(re.findall(r"(TP|CP) (\d+)", words))
    tp, cp = int(degrees.get("TP", 1)), int(degrees.get("CP", 1))
    sequence = int(row.get("Sequence Length", "8192").replace(",", ""))
    strategy = parse_strategy(
        f"tp={tp} cp={cp} dp={settings.gpus // (tp * cp)} micro_batch={settings.batch} zero=3 "
        f"sp={int(tp > 1)} recompute={settings.recompute} precision=fsdp2",
        settings.gpus,
    )
    model = build(settings.model, MODELS[settings.model], strategy.samples, sequence)
    tokens = strategy.samples * sequence / settings.gpus
    memory = row.get("Memory(GiB)", "")
    yield Row(
        f"{settings}{sequence}{words}",
        compile_program(model, strategy),
        tokens / float(row["TPS/GPU"].replace(",", "")) * 1e9,
        float(memory) * 2**30 if memory else None,
    )


def machines(efficiency: float) -> Cluster:
    """H100 with HBM2e, with another efficiency of matrix products, relative to 16 bits."""
    cluster = with_efficiency(find_cluster("dgx-h100"), efficiency)
    gpu = replace(cluster.gpu, memory_bytes=102_000_000_000, memory_bytes_per_s=2_400_000_000_000)
    return replace(cluster, gpu=gpu)


def fit(some: Sequence[Row]) -> float:
    """The efficiency with which the median error is 0."""
    measured = [row.measured_ns for row in some]

    def error(efficiency: float) -> float:
        return float(np.median(shares(predict(some, machines(efficiency)), measured)))

    return float(brentq(error, 0.05, 5.0, rtol=1e-3))


def _peaks(some: Sequence[Row]) -> list[float]:
    found = []
    for row in some:
        memory = simulate_program(row.program, machines(0.5)).memory
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
