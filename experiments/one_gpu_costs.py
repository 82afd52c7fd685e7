"""A table of costs of an H100 with what was measured by shape on an H200 only.

    cd experiments/results/gpu-h100
    python ../../one_gpu_costs.py costs.json one_gpu.json --out costs-with-h200.json

``costs.json`` lacks rows of attention by shape, convolutions, unaligned products, and Adam's step,
because ``byteprophet costs collect`` did not measure them then. The table that this script writes
has them from elsewhere:

attention, convolutions  ``results/gpu-h200/costs.csv``, bfloat16: the processor is the same
norms and others by size the same
unaligned products       three kernels in a trace of ``gpu_traces.py`` on the H100, of GPT-8
the time per launch      the median of what the jobs in ``_BY_HOST`` took per operator that the
                         simulator counts: in these, the host was slower than the GPU

A time of the H200 is that of the H100, but for what has more bytes than its slower memory moves
meanwhile. A trace of GPT-8 on the H100 says so: a layer norm of 8,192 x 1,024 elements takes 21.1
µs there (the H200: 21.6), GELU of 8,192 x 4,096 takes 48.1 (47.2), and backward 69.6 (62.9).

With costs that a current ``byteprophet costs collect`` has measured, none of this is needed.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from one_gpu import cluster_of, read_rows
from script import run_script

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.compile.program import Program
from byteprophet.simulate.costs.table import (
    MeasuredAttention,
    MeasuredConvolution,
    MeasuredLayer,
    MeasuredOperator,
    read_table,
    write_table,
)
from byteprophet.simulate.execute.simulate import simulate_program

_CSV = Path(__file__).parent / "results" / "gpu-h200" / "costs.csv"
_PHASES = {"forward": "forward", "backward": "backward", "input": "backward", "weight": "weight"}
_BY_HOST = (("bert-large", 8, 0), ("bert-large", 32, 128), ("resnet50", 64, 0))
"""Models, micro-batches and tokens per sample."""
_UNALIGNED: tuple[MeasuredLayer, ...] = (
    ("forward", 8192, 50257, 1024, 8_848_000.0),
    ("backward", 8192, 50257, 1024, 6_008_800.0),
    ("weight", 8192, 50257, 1024, 5_659_300.0),
)
"""The means of the kernels ``cutlass_75_tensorop_bf16_s1688gemm_bf16_..._align1``."""
_NAMES = {
    "layer_norm": "layer norm",
    "rms_norm": "rms norm",
    "cross_entropy": "loss",
    "gelu": "activation",
    "relu": "relu",
    "batch_norm": "batch_norm",
}
"""Names in the file, and among costs."""
_LEAST_ELEMENTS = 1 << 20
_WIDTH = 1024
"""Of operators of which the file has the number of elements only."""

Row = Mapping[str, str]


def main(arguments: Sequence[str]) -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("costs", type=Path, help="the H100's table of costs")
    parser.add_argument("jobs", type=Path, help="what one_gpu.py --measure has written")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    table = read_table(options.costs)
    with _CSV.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["dtype"] in ("bfloat16", "float32")]
    bandwidth = table.memory_bytes_per_s
    write_table(
        options.out,
        replace(
            table,
            source=f"{table.source}, and by shape on an H200",
            launch_ns=_launch_ns(options.jobs),
            update_bytes_per_s=min(bandwidth, _update(rows)),
            operators=(*table.operators, *_operators(rows, bandwidth)),
            attention=tuple(_attention(rows)),
            convolutions=tuple(_convolutions(rows, bandwidth)),
            unaligned=_UNALIGNED,
        ),
    )


def _launch_ns(path: Path) -> float:
    """What the host took per operator in jobs that it limits.

    Raises:
        UserError: the file has none of these jobs.
    """
    device, rows = read_rows(path)
    cluster = cluster_of(device)
    found = [
        row.measured_ns / _launches(row.program, cluster)
        for row in rows
        if (row.case.model, row.case.micro_batch, row.case.sequence) in _BY_HOST
        and row.case.micro_batches == 1
    ]
    if not found:
        raise UserError(f"{path}: has none of the jobs that the host limits")
    return statistics.median(found)


def _launches(program: Program, cluster: Cluster) -> float:
    """The operators that the host launches: how an iteration grows with the time per launch."""
    times = [
        simulate_program(
            program, replace(cluster, gpu=replace(cluster.gpu, launch_ns=launch_ns))
        ).iteration_ns
        for launch_ns in (10_000_000, 20_000_000)
    ]
    return (times[1] - times[0]) / 10_000_000


def _update(rows: Sequence[Row]) -> float:
    """Bytes per second of the largest fused step of Adam."""
    steps = [row for row in rows if row["op"] == "adamw" and row["extra"] == "fused"]
    largest = max(steps, key=lambda row: int(row["bytes"]))
    return int(largest["bytes"]) / int(largest["median_ns"]) * 1e9


def _measured_ns(row: Row, bandwidth: float) -> float:
    """A time of the H200, on a GPU with another memory bandwidth in bytes per second."""
    return max(float(row["median_ns"]), int(row["bytes"]) / bandwidth * 1e9)


def _sizes(row: Row, count: int) -> tuple[int, ...]:
    return tuple(int(row[column]) for column in "abcdef"[:count])


def _attention(rows: Sequence[Row]) -> Iterator[MeasuredAttention]:
    for row in rows:
        if row["op"] == "sdpa" and row["dtype"] == "bfloat16":
            samples, heads, tokens, width = _sizes(row, 4)
            measured_ns = float(row["median_ns"])
            yield row["pass"], row["extra"], samples, heads, tokens, width, measured_ns


def _convolutions(rows: Sequence[Row], bandwidth: float) -> Iterator[MeasuredConvolution]:
    for row in rows:
        if row["op"] != "conv2d" or row["extra"] != "channels_last":
            continue
        samples, inputs, outputs, kernel, stride, side = _sizes(row, 6)
        measured_ns = _measured_ns(row, bandwidth)
        phase = _PHASES[row["pass"]]
        if inputs > 3 or phase != "backward":  # images have no gradient
            yield phase, samples, inputs, outputs, kernel, stride, side, measured_ns


def _operators(rows: Sequence[Row], bandwidth: float) -> Iterator[MeasuredOperator]:
    for row in rows:
        if row["op"] not in _NAMES or row["dtype"] != "bfloat16":
            continue
        if row["op"] == "batch_norm":
            samples, width, side = _sizes(row, 3)
            tokens = samples * side**2
        elif row["op"] in ("gelu", "relu"):
            (elements,) = _sizes(row, 1)
            tokens, width = elements // _WIDTH, _WIDTH
        else:
            tokens, width = _sizes(row, 2)
        if tokens * width >= _LEAST_ELEMENTS:
            measured_ns = _measured_ns(row, bandwidth)
            yield _NAMES[row["op"]], row["pass"], tokens, width, measured_ns


if __name__ == "__main__":
    run_script(main)
