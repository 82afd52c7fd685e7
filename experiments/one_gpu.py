"""One GPU against the simulator: iteration times and peak memory of real training.

    python experiments/one_gpu.py --measure one_gpu.json [--seconds 90] [--only gpt2,bert-large]
    python experiments/one_gpu.py one_gpu.json --costs costs.json,aiconfigurator

The first command needs a GPU. It trains the models of ``one_gpu_cases.py`` there and writes what it
measured. The second one needs none: it simulates the same jobs, and prints errors of

shipped        the constants of the cluster ``dgx-h100``, with an H200's memory if it was one
a file         a table of ``byteprophet costs collect``, measured on that GPU
aiconfigurator the tables of NVIDIA's package (``pip install byteprophet[costs]``)
naive          one rate of model FLOPs, the median of all other cases

Of memory, it compares PyTorch's peak of allocated bytes with the simulator's peak, without what the
simulator reserves for the CUDA context and fragments.

Errors of the models in ``TUNED`` were looked at while the simulator was changed, and the costs that
``one_gpu_costs.py`` makes have a time per launch from two of them. The others are reported apart.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from groundtruth_programs import naive
from groundtruth_scores import Score, shares
from one_gpu_cases import CASES, MODELS, Case
from results_file import write_results
from rich.console import Console
from rich.table import Table
from script import progress_of, run_script

from byteprophet.cli.lists import split
from byteprophet.errors import UserError
from byteprophet.input_files import read_json
from byteprophet.report.console import table_console
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.compile.program import Program
from byteprophet.simulate.costs.sources import find_costs, with_costs
from byteprophet.simulate.execute.simulate import simulate_program

_CLUSTER = "dgx-h100"
_H200 = {"name": "H200-SXM5-141GB", "memory_bytes_per_s": 4_800_000_000_000}
"""NVIDIA's data sheet: the processor is an H100's."""
_GIB = 1 << 30
_FORMAT = "byteprophet-one-gpu"
TUNED = ("gpt2", "bert-large", "resnet50")
_progress = progress_of("one_gpu")


@dataclass(frozen=True)
class Row:
    """A measured case, as ``groundtruth_programs`` takes it."""

    case: Case
    measured_ns: float
    allocated_bytes: int

    @cached_property
    def program(self) -> Program:
        """The job as the simulator takes it."""
        return self.case.program


def main(arguments: Sequence[str]) -> None:
    """Measure, or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="what was measured")
    parser.add_argument("--measure", action="store_true", help="measure, and write the file")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=90.0, help="how long to measure, about")
    parser.add_argument("--only", default=",".join(MODELS), help="these models alone")
    parser.add_argument("--costs", default="", help="tables of costs, or aiconfigurator")
    parser.add_argument("--json", type=Path, help="also write the errors to this file")
    options = parser.parse_args(arguments)
    names = split(options.only, "--only")
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise UserError(f"--only: {unknown[0]}: have {', '.join(MODELS)}")
    if options.measure:
        _measure(options.file, options.device, options.seconds, names)
        return
    costs = split(options.costs, "--costs") if options.costs else []
    _compare(options.file, costs, options.json)


def _measure(path: Path, device: str, seconds: float, names: Sequence[str]) -> None:
    import torch
    from one_gpu_train import measure, typical_ms

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("torch sees no GPU here; --device cpu needs none")
    wanted = [case for case in (*CASES, *_SMALL) if case.model in names]
    if device == "cuda":
        wanted = [case for case in wanted if case not in _SMALL]
    began, found = time.monotonic(), []
    for at, case in enumerate(wanted):
        left = seconds - (time.monotonic() - began)
        if left <= 0:
            _progress(f"no time for the last {len(wanted) - at} cases")
            break
        try:
            measured = measure(case, device, 0.5 * left / (len(wanted) - at))
        except torch.OutOfMemoryError:
            _progress(f"{case.name}: does not fit")
            continue
        _progress(
            f"{case.name}: {typical_ms(measured):.1f} ms, {measured.allocated_bytes / _GIB:.2f} GiB"
        )
        found.append({**asdict(case), "median_ms": typical_ms(measured), **asdict(measured)})
    about = {"format": _FORMAT, "device": "CPU", "torch": torch.__version__, "memory_bytes": 0}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        about |= {"device": properties.name, "memory_bytes": properties.total_memory}
    write_results(path, {**about, "cases": found})


_SMALL = (Case("small", 2, 2), Case("small-llama", 2, 1, 8, True))
"""For tests, on the CPU."""


def read_rows(path: Path) -> tuple[str, list[Row]]:
    """The device, and what was measured there.

    Raises:
        UserError: the file is not one that this script has written.
    """
    data = read_json(path)
    try:
        if data["format"] != _FORMAT:
            raise KeyError("format")
        known = tuple(Case.__dataclass_fields__)
        rows = []
        for one in data["cases"]:
            case = Case(**{name: one[name] for name in known})
            rows.append(Row(case, one["median_ms"] * 1e6, one["allocated_bytes"]))
        return str(data["device"]), rows
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: not what one_gpu.py --measure has written: {error!r}") from None


def cluster_of(device: str) -> Cluster:
    """The cluster of the GPU on which was measured."""
    cluster = find_cluster(_CLUSTER)
    if "H200" in device:
        return replace(cluster, gpu=replace(cluster.gpu, **_H200))  # type: ignore[arg-type]
    return cluster


def _compare(path: Path, costs: Sequence[str], json_path: Path | None) -> None:
    device, rows = read_rows(path)
    if len(rows) < 2:
        raise UserError(f"{path}: has {len(rows)} cases: at least 2 are needed")
    cluster = cluster_of(device)
    clusters = {"shipped": cluster}
    clusters |= {name: with_costs(cluster, find_costs(name, cluster)) for name in costs}
    measured = [row.measured_ns for row in rows]
    times: dict[str, Sequence[float]] = {}
    memory: list[float] = []
    for name, one in clusters.items():
        results = [simulate_program(row.program, one) for row in rows]
        times[name] = shares([float(result.iteration_ns) for result in results], measured)
        memory = [float(result.memory[0].total - result.memory[0].reserved) for result in results]
    alone = [naive([other for other in rows if other is not row], [row])[0] for row in rows]
    times["naive"] = shares(alone, measured)
    of_memory = [
        predicted / row.allocated_bytes - 1 if row.allocated_bytes else float("nan")
        for predicted, row in zip(memory, rows, strict=True)
    ]
    console = table_console(150)
    console.print(f"{device}, {len(rows)} cases; errors are predicted over measured, less 1")
    console.print(_cases(rows, times, of_memory))
    console.print(_models(rows, {**times, "memory": of_memory}))
    if any(row.allocated_bytes for row in rows):
        times["memory"] = of_memory
    tuned = [row.case.model in TUNED for row in rows]
    groups = {"all": [True] * len(rows), "tuned on": tuned, "others": [not one for one in tuned]}
    for title, chosen in groups.items():
        if any(chosen):
            _print_scores(console, title, times, chosen)
    if json_path is not None:
        found = {
            name: [None if np.isnan(error) else float(error) for error in errors]
            for name, errors in times.items()
        }
        write_results(json_path, {"device": device, "errors": found})


def _cases(
    rows: Sequence[Row], times: Mapping[str, Sequence[float]], of_memory: Sequence[float]
) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("case")
    for name in ("measured", *times, "peak memory", "error"):
        table.add_column(Path(name).stem, justify="right")
    for at, row in enumerate(rows):
        table.add_row(
            row.case.name,
            f"{row.measured_ns / 1e6:.1f} ms",
            *(f"{errors[at]:+.1%}" for errors in times.values()),
            f"{row.allocated_bytes / _GIB:.2f} GiB",
            "" if np.isnan(of_memory[at]) else f"{of_memory[at]:+.1%}",
        )
    return table


def _models(rows: Sequence[Row], times: Mapping[str, Sequence[float]]) -> Table:
    """The mean error of each model: with its sign, and the largest."""
    table = Table(box=None, pad_edge=False)
    for name in ("model", "cases", *times):
        table.add_column(Path(name).stem, justify="left" if name == "model" else "right")
    for model in dict.fromkeys(row.case.model for row in rows):
        own = [at for at, row in enumerate(rows) if row.case.model == model]
        cells = [[errors[at] for at in own] for errors in times.values()]
        said = (f"{np.mean(one):+.1%} ({max(one, key=abs):+.1%})" for one in cells)
        table.add_row(model, str(len(own)), *said)
    return table


def _print_scores(
    console: Console, title: str, times: Mapping[str, Sequence[float]], chosen: Sequence[bool]
) -> None:
    """The scores of ``chosen`` rows."""
    table = Table(box=None, pad_edge=False)
    for name in (title, "cases", "MAPE", "median", "within 5%", "p95", "worst"):
        table.add_column(name, justify="left" if name == title else "right")
    for name, errors in times.items():
        some = [one for one, here in zip(errors, chosen, strict=True) if here and not np.isnan(one)]
        if not some:
            continue
        score = Score(name, some, (0.0,), (0.0,))
        table.add_row(
            Path(name).stem,
            str(len(score.errors)),
            f"{score.mape:.1%}",
            f"{score.median:.1%}",
            f"{score.within:.0%}",
            f"{score.p95:.1%}",
            f"{score.worst:+.1%}",
        )
    console.print(table)


if __name__ == "__main__":
    run_script(main)
