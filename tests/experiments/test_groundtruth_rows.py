"""How rows of public tables become jobs, on tables that are made here."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import groundtruth_bigscience
import groundtruth_mlperf
import groundtruth_sailor
import groundtruth_torchtitan
import pytest
from groundtruth_programs import root
from groundtruth_scores import half_of

from byteprophet.simulate.clusters.description import Cluster, find_cluster

_TITAN_CAPTION = (
    "Float8 and torch.compile in general. **Table 1** 1D parallelism (FSDP). Llama 3.1 8B model. "
    "8 GPUs. Local batch size 2, global batch size 16. Selective activation checkpointing."
)


_COLUMNS = (
    *("_context", "GPUs", "Size", "DP", "TP", "PP", "MBS", "GBS", "Nodes", "ZS"),
    *("NHIDDEN", "Layers", "NHEADS", "Mem", "TFLOPs", "Notes"),
)


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _titan(folder: Path, caption: str, rows: list[dict[str, str]]) -> None:
    columns = "|".join(rows[0])
    index = {"file": "one.csv", "headings": "Results", "context": caption, "columns": columns}
    _write(folder / "torchtitan" / "index.csv", [index])
    _write(folder / "torchtitan" / "one.csv", rows)


def test_techniques_of_torchtitan_are_those_of_the_row_and_its_caption(tmp_path: Path) -> None:
    """What stands before the caption is about other tables, too."""
    techniques = "FSDP", "FSDP + torch.compile", "FSDP + torch.compile + Float8"
    rows = [{"Techniques": one, "TPS/GPU": "4,096", "Memory(GiB)": "70"} for one in techniques]
    _titan(tmp_path, _TITAN_CAPTION, rows)
    found = groundtruth_torchtitan.rows(tmp_path)
    assert [row.compiled for row in found] == [False, True, True]
    precisions = [row.program.strategy.precision for row in found]
    assert precisions == ["fsdp2", "fsdp2", "fsdp2_fp8"]
    assert all(row.measured_ns == 4e9 for row in found)  # 2 x 8,192 tokens of each GPU


def test_torchtitan_without_compilation_and_with_16_bits_takes_longer(tmp_path: Path) -> None:
    techniques = "FSDP", "FSDP + torch.compile", "FSDP + torch.compile + Float8"
    rows = [{"Techniques": one, "TPS/GPU": "4,096", "Memory(GiB)": ""} for one in techniques]
    _titan(tmp_path, _TITAN_CAPTION, rows)
    found = groundtruth_torchtitan.rows(tmp_path)
    times = groundtruth_torchtitan.predict(found, groundtruth_torchtitan.machines(0.5))
    assert times[0] > 1.05 * times[1] > 1.05 * times[2]


def test_tensor_parallel_ranks_of_torchtitan_may_be_in_the_caption(tmp_path: Path) -> None:
    caption = (
        "**Table 4** 2D parallelism (FSDP + TP) + torch.compile + Float8. Llama 3.1 70B model. 256 "
        "GPUs (FSDP 32, TP 8). Local batch size 16. Full activation checkpointing."
    )
    rows = [{"Techniques": one, "TPS/GPU": "800", "Memory(GiB)": "70"} for one in ("2D", "+ Async")]
    _titan(tmp_path, caption, rows)
    (row,) = groundtruth_torchtitan.rows(tmp_path)
    strategy = row.program.strategy
    assert (strategy.mesh.tp, strategy.mesh.dp, strategy.precision) == (8, 32, "fsdp2_fp8")


def test_selective_recomputation_takes_less_memory_than_none_and_less_time_than_full(
    tmp_path: Path,
) -> None:
    found = {}
    for kind in ("Selective", "Full", "No"):
        caption = _TITAN_CAPTION.replace("Selective", kind)
        _titan(tmp_path, caption, [{"Techniques": "FSDP", "TPS/GPU": "4,096"}])
        (found[kind],) = groundtruth_torchtitan.rows(tmp_path)
    machines = groundtruth_torchtitan.machines(0.5)
    times = {
        kind: groundtruth_torchtitan.predict([row], machines)[0] for kind, row in found.items()
    }
    assert times["No"] < times["Selective"] < times["Full"]
    kept = {kind: row.kept.stages[0].saved_bytes for kind, row in found.items()}
    assert kept["Full"] < kept["Selective"] < kept["No"]


@dataclass(frozen=True)
class _Run:
    """What decides which runs calibrate others."""

    round_name: str
    kind: tuple[str, str]
    gpus: int


def test_the_smallest_run_of_the_round_with_most_runs_calibrates() -> None:
    kind = ("gpt3", "H100")
    runs = [_Run("v1", kind, 8), _Run("v2", kind, 16), _Run("v2", kind, 64), _Run("v3", kind, 32)]
    (pair,) = groundtruth_mlperf.pairs(runs, None, by_round=False)
    assert pair == (runs[1], [runs[0], runs[2], runs[3]])
    (pair,) = groundtruth_mlperf.pairs(runs, None, by_round=True)
    assert pair == (runs[1], [runs[2]])


def test_a_round_without_runs_for_fitting_takes_those_of_another_round() -> None:
    kind = ("gpt3", "H100")
    fitted = [_Run("v2", kind, 16), _Run("v2", kind, 64), _Run("v3", kind, 8)]
    tested = [_Run("v1", kind, 8), _Run("v3", kind, 32), _Run("v3", ("gpt3", "B200"), 8)]
    found = groundtruth_mlperf.pairs(tested, fitted, by_round=True)
    assert found == [(fitted[0], [tested[0]]), (fitted[2], [tested[1]])]


@pytest.mark.parametrize(
    ("gpu", "gpus", "per_node", "domain"),
    [("H100", 64, 8, 8), ("GB200", 72, 4, 72), ("GB200", 512, 4, 64), ("GB300", 8, 4, 8)],
)
def test_nvlink_joins_nodes_of_gb200(gpu: str, gpus: int, per_node: int, domain: int) -> None:
    cluster = groundtruth_mlperf.cluster_of(gpu, gpus, per_node)
    assert cluster.node.gpus == cluster.network.adapters == domain


def test_seconds_and_tflops_that_are_exchanged_are_put_right(tmp_path: Path) -> None:
    row: dict[str, Any] = dict.fromkeys(_COLUMNS, "")
    row |= {"Sec/it": "134.02", "TFLOPs": "120.29", "Size": "181B", "GBS": "2048", "Nodes": "48"}
    row |= {"DP": "4", "TP": "8", "PP": "12", "MBS": "2", "NHIDDEN": "14336", "Layers": "72"}
    other = row | {"Sec/it": "120.29", "TFLOPs": "134.02", "ZS": "1"}
    _write(tmp_path / "bigscience" / "bloom_prequel_384xA100.csv", [row, other])
    found = groundtruth_bigscience.rows(tmp_path)
    assert [one.measured_s for one in found] == [134.02, 134.02]


def test_jobs_of_the_chronicle_wait_for_each_launch(tmp_path: Path) -> None:
    row: dict[str, Any] = dict.fromkeys(_COLUMNS, "")
    row |= {"Sec/it": "134.02", "Size": "181B", "GBS": "2048", "Nodes": "48"}
    row |= {"DP": "4", "TP": "8", "PP": "12", "MBS": "2", "NHIDDEN": "14336", "Layers": "72"}
    _write(tmp_path / "bigscience" / "bloom_prequel_384xA100.csv", [row])
    (one,) = groundtruth_bigscience.rows(tmp_path)
    assert one.program.strategy.all_reduce
    machines = find_cluster("a100-4xhdr")
    blocking = groundtruth_bigscience.simulate_program(one.program, machines)
    strategy = replace(one.program.strategy, launch_blocking=False)
    ahead = replace(one.program, strategy=strategy)
    faster = groundtruth_bigscience.simulate_program(ahead, machines)
    assert faster.iteration_ns < blocking.iteration_ns


@pytest.mark.parametrize(("day", "slower"), [("02-24", True), ("02-25", False), ("", False)])
def test_nodes_of_the_chronicle_were_slower_before_a_repair(
    tmp_path: Path, day: str, slower: bool
) -> None:
    row: dict[str, Any] = dict.fromkeys(_COLUMNS, "")
    row |= {"Sec/it": "134.02", "Size": "181B", "GBS": "2048", "Nodes": "48", "Notes": day}
    row |= {"DP": "4", "TP": "8", "PP": "12", "MBS": "2", "NHIDDEN": "14336", "Layers": "72"}
    _write(tmp_path / "bigscience" / "bloom_prequel_384xA100.csv", [row])
    (one,) = groundtruth_bigscience.rows(tmp_path)
    assert (one.slower > 1) is slower


def test_a_launch_that_blocks_takes_what_the_smallest_operators_do(tmp_path: Path) -> None:
    """Two operators that take 100 and 300 us, and hardly anything on the GPU."""
    row = {"gpu": "A100-40", "dtype": "fp16", "algo": "0", "model": "OPT-350", "mbs": "1"}
    row |= {"op_name": "enc-MLP-gelu", "forward_us": "100", "backward_us": "300"}
    others = [{"op_name": "enc-MLP-GEMM-2"}, {"mbs": "8"}, {"tp": "1"}, {"dtype": "fp32"}]
    lines = [row | {"tp": "4"}, *(row | {"tp": "4", "forward_us": "9e9"} | one for one in others)]
    path = tmp_path / "sailor" / "aceso_op_profiles.csv"
    _write(path, lines)
    path.with_suffix(".csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    parts = groundtruth_sailor.Parts(0.8, 0.7, {})
    found = groundtruth_sailor.blocked_launch_ns(tmp_path, parts)
    gpu_ns = sum(groundtruth_sailor.predict(groundtruth_sailor._rows(tmp_path, _is_gelu), parts))
    assert 0 < gpu_ns < 40_000
    assert found == pytest.approx(200_000 - gpu_ns / 2, abs=1)


def _is_gelu(row: Mapping[str, str]) -> bool:
    return row["op_name"] == "enc-MLP-gelu" and row["forward_us"] == "100"


def test_a_constant_without_a_solution_is_the_nearest_bound() -> None:
    assert root(lambda value: 3 - value, 1, 5) == pytest.approx(3, rel=1e-3)
    assert root(lambda value: 7 - value, 1, 5) == 5
    assert root(lambda value: 0.5 - value, 1, 5) == 1


def test_nothing_of_the_rehearsal_is_scored_with_constants_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One job in each half: what each takes besides tensors comes from the other one.

    A prediction is the time of a launch, so errors say whose constants it has.
    """
    texts = [f"gpus,size,dp,tp,pp,{micro_batch},gbs" for micro_batch in range(8)]
    halves = {half_of(text): text for text in texts}
    sizes = {halves[0]: 10e9, halves[1]: 14e9}
    rows: list[Any] = [
        groundtruth_bigscience.Row(text, text, 1e-3, size, True)  # type: ignore[arg-type]
        for text, size in sizes.items()
    ]
    failed: Any = "no program"
    rows.append(groundtruth_bigscience.Row(halves[0], failed, None, None, fits=False))
    shipped = find_cluster("a100-4xhdr")

    def simulate_program(program: str, cluster: Cluster) -> Any:
        total = 90e9 if program == failed else 8e9
        memory = [SimpleNamespace(total=total, reserved=0)]
        return SimpleNamespace(iteration_ns=cluster.gpu.launch_ns, memory=memory)

    other = replace(shipped, gpu=replace(shipped.gpu, launch_ns=500_000))
    monkeypatch.setattr(groundtruth_bigscience, "rows", lambda _: rows)
    monkeypatch.setattr(groundtruth_bigscience, "cluster", lambda _: other)
    monkeypatch.setattr(groundtruth_bigscience, "simulate_program", simulate_program)
    monkeypatch.setattr(groundtruth_bigscience, "flops_of", lambda _: 1)
    time, _, memory = groundtruth_bigscience.score_bigscience(Path(), None)
    assert time.errors == pytest.approx([-0.5, -0.5])
    assert time.shipped == pytest.approx([shipped.gpu.launch_ns / 1e6 - 1] * 2)
    assert sorted(memory.errors) == pytest.approx([10 / 14 - 1, 14 / 10 - 1])
    assert sorted(memory.naive) == pytest.approx([10 / 14 - 1, 14 / 10 - 1])
    assert "1 of 1 jobs that ran out of memory found; 0 of 3 rows wrong" in memory.constants
