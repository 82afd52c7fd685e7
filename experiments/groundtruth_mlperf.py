"""MLPerf training's logged steps on H100 and later GPUs.

These are GPT-3 175B, Llama 3.1 405B and 8B, and Llama 2 70B with LoRA. NeMo's adapters of rank 16
are those of the projections of attention, as ``lora`` of the simulator.

These runs use FP8, for which no shipped constant holds. So one constant, the efficiency of matrix
products, is set such that one run of each model and GPU type is met: of the round with most runs,
that with the fewest GPUs. All others are predicted with it, on up to 128 times as many GPUs.
Software became faster from round to round, so the same is done for each round on its own, too.

Rows are those whose configuration file agrees with what was logged. Left out are runs with FP4,
which the simulator does not have. GPT-3 ran with 6 chunks per pipeline rank. Peaks of
GPUs that are not built in are those of NVIDIA's data sheets, dense. GB200 and GB300 have NVLink
between nodes of 4 GPUs, in domains of up to 72.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from groundtruth_programs import naive, predict, root, with_efficiency
from groundtruth_scores import Score, at_peak, shares

from byteprophet.errors import UserError
from byteprophet.input_files import read_text
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.models.catalogue import find_model
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.tree.one_line import parse_strategy

_MODELS = {
    "gpt3": "gpt3-175b",
    "llama2_70b_lora": "llama2-70b:lora=16,sequence=8192",
    "llama31_405b": "llama3-405b",
    "llama31_8b": "llama3-8b",
}
_CHUNKS = {"gpt3": 6}
"""Of pipeline ranks, where the configuration does not say.
"""
_H100 = (989, 3_350, 450, 132, 400)
_GPUS = {
    "H100": _H100,
    "H200": (989, 4_800, 450, 132, 400),
    "GB200": (2_500, 8_000, 900, 148, 400),
    "GB300": (2_500, 8_000, 900, 148, 800),
    "B200": (2_250, 8_000, 900, 148, 400),
    "B300": (2_250, 8_000, 900, 148, 800),
}
"""By a word of the GPU's name: 16-bit TFLOPS, GB/s of memory and of NVLink (one direction),
multiprocessors, and Gb/s of its adapter. The first word that is in the name counts."""
_DOMAIN = 72
"""The most GPUs that NVLink joins in GB200 and GB300 systems."""
LARGE = 1024
"""GPUs of the runs that have a score of their own."""


@dataclass(frozen=True)
class Row:
    """A measurement: ``kind`` is the model and the GPU type."""

    round_name: str
    kind: tuple[str, str]
    gpus: int
    program: Program
    cluster: Cluster
    measured_ns: float


def rows(folder: Path) -> list[Row]:
    """The measurements in a folder, those with the fewest GPUs first."""
    path = folder / "mlperf_training" / "llm_steps.csv"
    try:
        found = [_row(row) for row in csv.DictReader(read_text(path).splitlines()) if _usable(row)]
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: not a table of MLPerf's steps: {error!r}") from None
    return sorted(found, key=lambda row: (row.gpus, row.round_name, row.measured_ns))


def _usable(row: Mapping[str, str]) -> bool:
    return (
        row["benchmark"] in _MODELS
        and row["config_consistent"] == "yes"
        and "fp4" not in row["config_file"]
        and any(word in row["accelerator"] for word in _GPUS)
    )


def _row(row: Mapping[str, str]) -> Row:
    def number(name: str, default: int = 1) -> int:
        return int(row[name]) if row[name].isdecimal() else default

    gpus, tp, pp, cp = (number(name) for name in ("n_accel", "tp", "pp", "cp"))
    dp, micro_batch = gpus // (tp * pp * cp), number("mbs")
    chunks = number("vp", _CHUNKS.get(row["benchmark"], 1))
    strategy = parse_strategy(
        f"tp={tp} pp={pp} cp={cp} dp={dp} micro_batch={micro_batch} sp={int(tp > 1)} zero=1 "
        f"micro_batches={int(row['global_batch']) // (dp * micro_batch)} "
        f"schedule={'interleaved' if chunks > 1 else '1f1b'} chunks={chunks}",
        gpus,
    )
    model = build(*find_model(_MODELS[row["benchmark"]]), strategy.samples)
    program = compile_program(model, strategy)
    gpu = next(word for word in _GPUS if word in row["accelerator"])
    kind = row["benchmark"], gpu
    measured_ns = float(row["step_s"]) * 1e9
    per_node = number("accel_per_node")
    return Row(row["round"], kind, gpus, program, cluster_of(gpu, gpus, per_node), measured_ns)


def cluster_of(gpu: str, gpus: int, per_node: int) -> Cluster:
    """The machines of a run: those of ``dgx-h100`` with the peaks of another GPU."""
    found = find_cluster("dgx-h100")
    teraflops, memory, nvlink, multiprocessors, adapter = _GPUS[gpu]
    joined = range(per_node, min(_DOMAIN, gpus) + 1, per_node)
    domain = max(size for size in joined if gpus % size == 0) if gpu.startswith("G") else per_node
    return replace(
        found,
        gpu=replace(
            found.gpu,
            name=gpu,
            flops_per_s=teraflops * 10**12,
            memory_bytes_per_s=memory * 10**9,
            multiprocessors=multiprocessors,
        ),
        node=replace(found.node, gpus=domain, gpu_bytes_per_s=nvlink * 10**9),
        network=replace(found.network, adapters=domain, adapter_bits_per_s=adapter * 10**9),
    )


def times(
    some: Iterable[Row], efficiency: float | None = None, *, peak: bool = False
) -> list[float]:
    """Predicted times, with another efficiency of matrix products, or at the peaks."""
    found = []
    for row in some:
        cluster = row.cluster if efficiency is None else with_efficiency(row.cluster, efficiency)
        found += predict([row], at_peak(cluster) if peak else cluster)
    return found


def calibrate(row: Row, known: dict[int, float] | None = None) -> float:
    """The efficiency with which the prediction of ``row`` is right.

    ``known``: those that were found, by the identity of their rows.
    """
    known = {} if known is None else known
    if id(row) in known:
        return known[id(row)]

    def error(efficiency: float) -> float:
        return times([row], efficiency)[0] - row.measured_ns

    known[id(row)] = root(error, 0.02, 8.0)
    return known[id(row)]


def pairs(
    tested: Sequence[Row], others: Sequence[Row] | None, *, by_round: bool
) -> list[tuple[Row, list[Row]]]:
    """For each kind of runs, the one that calibrates, and those that are predicted with it.

    ``others``: runs that calibrate; None: those that are tested. The round with most runs
    calibrates all (of several, the latest), or with ``by_round`` rounds that ``others`` lack.
    """
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in tested:
        groups[(*row.kind, row.round_name) if by_round else row.kind].append(row)
    found = []
    for key, group in groups.items():
        same = [row for row in (tested if others is None else others) if row.kind == key[:2]]
        counts = Counter(row.round_name for row in same)
        name = max(counts, key=lambda one: (counts[one], one), default="")
        name = key[2] if by_round and key[2] in counts else name
        same = [row for row in same if row.round_name == name]
        rest = [row for row in group if row is not same[0]] if same else []
        if rest:
            found.append((same[0], rest))
    return found


def score_mlperf(folder: Path, fit_folder: Path | None) -> list[Score]:
    """Errors of all rows but those that calibrate."""
    tested = rows(folder)
    others = None if fit_folder is None else rows(fit_folder)
    scores = []
    known: dict[int, float] = {}
    for by_round in (False, True):
        words = "MLPerf, one run per model, GPU" + (" and round" if by_round else "")
        found = pairs(tested, others, by_round=by_round)
        large = [(first, [row for row in rest if row.gpus >= LARGE]) for first, rest in found]
        for name, some in ((words, found), (f"of these, {LARGE:,} GPUs and more", large)):
            if any(rest for _, rest in some):
                scores.append(_score(name, some, known))
    return scores


def _score(words: str, some: Iterable[tuple[Row, Sequence[Row]]], known: dict[int, float]) -> Score:
    errors: list[list[float]] = [[], [], [], []]
    constants = []
    for first, rest in some:
        if not rest:
            continue
        efficiency = calibrate(first, known)
        model, gpu = first.kind
        constants.append(f"{efficiency:.2f} ({model}, {gpu}, {first.round_name})")
        measured = [row.measured_ns for row in rest]
        errors[0] += shares(times(rest, efficiency), measured)
        errors[1] += shares(naive([first], rest), measured)
        errors[2] += shares(times(rest), measured)
        errors[3] += shares(times(rest, peak=True), measured)
    named = f"mlperf: efficiency {', '.join(constants)}"
    return Score(words, errors[0], errors[1], errors[2], named, errors[3])
