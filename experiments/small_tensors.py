r"""Many small tensors: what fusing them into buffers gains, and how large a buffer should be.

    python experiments/small_tensors.py --bandwidths 300mbit --workloads small --rounds 3
    python experiments/small_tensors.py --workloads mobilenet,efficientnet,densenet201

In each cell, a workload on a link, all candidates run in turn, round after round: every scheduler
with every size of buffers, 0 for none. Printed is every candidate's median iteration over the
bound, the processor time of a worker in cores, and, for prophet, the best other scheduler with the
same buffers beside it. ``small`` has 420 tensors of 1 to 60 KB, 14 MB in all. The shapes of
MobileNetV2 (Sandler et al. 2018) and EfficientNet-B0 (Tan and Le 2019) are made here. As under
``byteprophet run``, prophet has a controller, so all workers send in one order. Measuring begins
when they do. A job takes about half a minute.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.table import Table
from script import run_script, scheduler_names

from byteprophet.bench import Plan, run_bench
from byteprophet.bench.case import Case
from byteprophet.cli.lists import split
from byteprophet.errors import UserError
from byteprophet.input_files import whole_number
from byteprophet.network import parse_rate
from byteprophet.report.console import progress_of, table_console
from byteprophet.runtime_settings import DEFAULT_FUSION_BYTES, FUSION_BYTES
from byteprophet.whole_files import make_directory, write_whole
from byteprophet.workload import Workload
from byteprophet.workload.files import to_toml
from byteprophet.workload.model import FLOAT32_BYTES, distribute
from byteprophet.workload.networks.layers import (
    Parameter,
    convolution,
    linear,
    normalisation,
    to_workload,
)

_SMALL_TENSORS, _SMALL_BYTES = 420, 14_000_000
_SMALLEST_BYTES, _LARGEST_BYTES = 1_000, 60_000
_COMPUTE_NS = 400_000_000
_WARMUP_ITERATIONS = 24  # prophet's workers have adopted the controller's plan after 14 or so
_BATCH = 32
# Expansion, output channels, repetitions, stride of the first, side of the kernel.
_MOBILENET = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3),
    (6, 160, 3, 2, 3), (6, 320, 1, 1, 3),
)  # fmt: skip
_EFFICIENTNET = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """Run all cells and print a table."""
    options = _parse(arguments)
    rows: list[tuple[Case, dict[str, Any]]] = []
    for name in split(options.workloads, "--workloads"):
        workload = workload_of(name, options.runs)
        for bandwidth in split(options.bandwidths, "--bandwidths"):
            cases = tuple(
                Case(
                    workload,
                    scheduler,
                    parse_rate(bandwidth),
                    workers=options.workers,
                    compute_ns=options.compute_ns,
                    environment={FUSION_BYTES: str(size_bytes)},
                )
                for size_bytes in _sizes(options.fusion)
                for scheduler in scheduler_names(options.schedulers)
            )
            plan = Plan(
                cases,
                options.iterations * options.rounds,
                rounds=options.rounds,
                warmup_iterations=_WARMUP_ITERATIONS,
                controller=True,
            )
            progress = progress_of(f"{name} {bandwidth}")
            rows += zip(cases, run_bench(plan, options.runs, True, progress), strict=True)
    _print(rows)


def _print(rows: Sequence[tuple[Case, dict[str, Any]]]) -> None:
    table = Table("workload", "link", "buffers", "scheduler", box=box.SIMPLE)
    for title in ("over the bound", "cores per worker", "best other / prophet"):
        table.add_column(title, justify="right")
    gaps = []
    for case, row in rows:
        over = row["bound_ratio"]
        others = [
            other["bound_ratio"]
            for rival, other in rows
            if rival.scheduler not in ("prophet", "stock")
            and (rival.workload, rival.bandwidth_bps, rival.environment)
            == (case.workload, case.bandwidth_bps, case.environment)
        ]
        beside = ""
        if case.scheduler == "prophet":
            gaps.append(over)
            if others:
                beside = f"{min(others) / over:.3f}"
        table.add_row(
            row["workload"],
            f"{(case.bandwidth_bps or 0) / 1e6:g} Mbit/s",
            case.environment[FUSION_BYTES],
            case.scheduler,
            f"{over:.3f}",
            f"{row['worker_cpu_fraction']:.2f}",
            beside,
        )
    table_console(120).print(table)
    if gaps:
        print(f"prophet over the bound: median {median(gaps):.3f}, worst {max(gaps):.3f}")


def _sizes(text: str) -> list[int]:
    sizes = [whole_number(size) for size in split(text, "--fusion")]
    found = [size for size in sizes if size is not None]
    if len(found) < len(sizes):
        raise UserError(f"--fusion {text}: must be numbers of bytes")
    return found


def workload_of(name: str, runs: Path) -> str:
    """A built-in name, or the path of a workload that is made here."""
    made = {"small": _small, "mobilenet": _mobilenet, "efficientnet": _efficientnet}
    if name not in made:
        return name
    make_directory(runs)
    path = runs / f"{name}.toml"
    write_whole(path, to_toml(made[name]()))
    return str(path)


def _small() -> Workload:
    """Sizes are log-uniform, every layer takes the same time."""
    draw = random.Random(1)
    low, high = math.log(_SMALLEST_BYTES), math.log(_LARGEST_BYTES)
    weights = [round(math.exp(low + (high - low) * draw.random())) for _ in range(_SMALL_TENSORS)]
    elements = distribute(_SMALL_BYTES // FLOAT32_BYTES, weights)
    parameters = [Parameter(f"layer.{place}", (size,), 1) for place, size in enumerate(elements)]
    return to_workload("small", _BATCH, _COMPUTE_NS, parameters)


def _mobilenet() -> Workload:
    return to_workload("mobilenet", _BATCH, _COMPUTE_NS, _inverted(_MOBILENET, excites=False))


def _efficientnet() -> Workload:
    return to_workload("efficientnet", _BATCH, _COMPUTE_NS, _inverted(_EFFICIENTNET, excites=True))


def _inverted(
    stages: Sequence[tuple[int, int, int, int, int]], *, excites: bool
) -> list[Parameter]:
    """Inverted residual blocks, with squeeze and excitation if ``excites``."""
    side, channels = 112, 32
    found = convolution("stem.conv", 3, channels, 3, side)
    found += normalisation("stem.norm", channels, side * side)
    for stage, (expansion, out, repetitions, stride, kernel) in enumerate(stages):
        for number in range(repetitions):
            name, inner = f"stage{stage}.{number}", channels * expansion
            if expansion > 1:
                found += convolution(f"{name}.expand", channels, inner, 1, side)
                found += normalisation(f"{name}.norm0", inner, side * side)
            side = side // stride if number == 0 else side
            # Depthwise: each channel has a kernel of its own.
            found += convolution(f"{name}.depthwise", 1, inner, kernel, side)
            found += normalisation(f"{name}.norm1", inner, side * side)
            if excites:
                found += linear(f"{name}.squeeze", inner, channels // 4)
                found += linear(f"{name}.excite", channels // 4, inner)
            found += convolution(f"{name}.project", inner, out, 1, side)
            found += normalisation(f"{name}.norm2", out, side * side)
            channels = out
    found += convolution("head.conv", channels, 1280, 1, side)
    found += normalisation("head.norm", 1280, side * side)
    return [*found, *linear("classifier", 1280, 1000)]


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what fusing small tensors gains.")
    parser.add_argument("--workloads", default="small,mobilenet,efficientnet,densenet201")
    parser.add_argument("--bandwidths", default="100mbit,300mbit,600mbit,1gbit,3gbit")
    parser.add_argument("--schedulers", default="fifo,p3,bytescheduler,prophet")
    parser.add_argument("--fusion", default=f"0,{DEFAULT_FUSION_BYTES}", help="bytes per buffer")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--compute-ns", type=int, help="of all workloads")
    parser.add_argument("--iterations", type=int, default=20, help="per job")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_script(main)
