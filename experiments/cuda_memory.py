"""The memory of training on CUDA, predicted without a GPU, beside what one H200 took.

    python experiments/cuda_memory.py [--rows gpt2,bert]

For every row of ``results/gpu-h200/allocator.csv`` (``README.md`` there): the peaks of allocated
and reserved bytes over three iterations, predicted by ``byteprophet.memory.cuda``. What the process
had allocated before the model (two workspaces of cuBLAS, and 1 MiB) is given.

All formulas were read off the two configurations whose histories are recorded: scratch memory of
convolutions, attention and gradients of embeddings. These rows are *seen*, all others *held out*.
The models were written down from the same two histories, and BERT, which has none, from its numbers
of parameters and allocations and two rows' requested bytes (``cuda_memory_models.py``).

The held-out rows were looked at while this was written. No number was fitted to them, but what
they showed was repaired: a first bound of cuDNN's scratch memory was too large for small batches,
so that it was read off the history again; gradients of few embeddings are not sorted; convolutions
in the channels-last format had lost it; attention in float32 needs scratch memory in its backward
pass.

Beside it, for both peaks:

- *liveness*: the same iteration's tensors, without rounding, segments and scratch memory;
- *formula*: parameters, gradients, optimizer state and the outputs of all layers.

Also serves both recorded histories, which must give the recorded peaks to the byte; exit status 1
if they do not. Prints errors per model, and writes ``results/cuda_memory.json``. Six minutes
on one core.
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from cuda_history import BEFORE_BYTES, Recorded, read_history, serve
from cuda_memory_models import Configuration
from results_file import write_results
from rich import box
from rich.table import Table
from script import progress_of, run_script

from byteprophet.errors import JobFailed
from byteprophet.memory.cuda.gpu import GPUS
from byteprophet.memory.cuda.peak import cuda_events, replay
from byteprophet.memory.cuda.sequence import SCRATCH, Event
from byteprophet.report.console import table_console

MEASURED = Path(__file__).parent / "results" / "gpu-h200"
HISTORIES = {
    Configuration("resnet50", 32, 224, "sgd", "fp32"): "allocations_resnet50_b32_sgd_fp32.txt.gz",
    Configuration("gpt2", 8, 1024, "adamw", "bf16"): "allocations_gpt2_b8_adamw_bf16.txt.gz",
}
"""In the order of the first rows of the table, which are the measurements that were recorded."""
AMOUNTS = ("allocated", "reserved", "requested", "inactive_split")
_WAYS = ("predicted", "liveness", "formula")
_progress = progress_of("cuda_memory")


def main(arguments: Sequence[str]) -> None:
    """Serve the histories, predict the rows, print, write."""
    parser = argparse.ArgumentParser(
        description="Predict the memory of training on CUDA, beside measurements.",
        epilog="example: python experiments/cuda_memory.py --rows bert",
    )
    parser.add_argument("--rows", default="", help="models whose rows are predicted (default: all)")
    parser.add_argument("--out", type=Path, default=MEASURED.parent / "cuda_memory.json")
    options = parser.parse_args(arguments)
    models = [each for each in options.rows.split(",") if each]
    rows = measured_rows()
    check_histories(rows)
    found = [
        predicted_row(configuration, row)
        for configuration, row in rows
        if not models or configuration.model in models
    ]
    print_errors(found)
    if not models:
        write_results(options.out, {"rows": found, "torch": torch.__version__})
        print(f"wrote {options.out}")


def measured_rows() -> list[tuple[Configuration, Mapping[str, str]]]:
    """The rows of the measurement."""
    with (MEASURED / "allocator.csv").open(encoding="utf-8", newline="") as file:
        return [
            (
                Configuration(
                    row["model"],
                    int(row["batch"]),
                    int(row["size"]),
                    row["optimizer"],
                    row["precision"],
                ),
                row,
            )
            for row in csv.DictReader(file)
        ]


def check_histories(rows: Sequence[tuple[Configuration, Mapping[str, str]]]) -> None:
    """Serve the recorded histories; JobFailed if their peaks are not the recorded ones."""
    for (configuration, name), (of, row) in zip(HISTORIES.items(), rows, strict=False):
        assert configuration == of
        allocator = Recorded()
        wrong = serve(allocator, read_history(MEASURED / name))
        peak = vars(allocator.peak)
        differ = [each for each in AMOUNTS if peak[f"{each}_bytes"] != int(row[f"peak_{each}"])]
        if wrong or differ or allocator.peak.segments != int(row["segments_peak"]):
            raise JobFailed(f"{name}: {wrong} segments and the peaks of {differ} differ")
        print(
            f"{name}: peaks of {', '.join(AMOUNTS)} bytes and of segments, and each segment, equal "
            f"to the byte; {allocator.contradictions} addresses not explained"
        )


def predicted_row(configuration: Configuration, row: Mapping[str, str]) -> dict[str, Any]:
    """A row, predicted in three ways."""
    _progress(str(configuration))
    events = cuda_events(configuration.training(), GPUS["h200"], with_workspaces=False)
    before = [Event(-place, size, "before") for place, size in enumerate(BEFORE_BYTES, 1)]
    peak = replay([*before, *events])
    return {
        **vars(configuration),
        "is_seen": configuration in HISTORIES,
        "measured": {each: int(row[f"peak_{each}"]) for each in AMOUNTS},
        "predicted": {each: getattr(peak, f"{each}_bytes") for each in AMOUNTS},
        "liveness": live_bytes(events) + sum(BEFORE_BYTES),
        "formula": formula_bytes(configuration) + sum(BEFORE_BYTES),
        "measured_allocations": int(row["allocations"]),
        "predicted_allocations": peak.allocations - len(BEFORE_BYTES),
    }


def live_bytes(events: Sequence[Event]) -> int:
    """The most that tensors take."""
    sizes: dict[int, int] = {}
    live = most = 0
    for handle, size_bytes, label in events:
        if size_bytes and not label.endswith(SCRATCH):
            sizes[handle] = size_bytes
            live += size_bytes
            most = max(most, live)
        elif not size_bytes:
            live -= sizes.pop(handle, 0)
    return most


def formula_bytes(configuration: Configuration) -> int:
    """Parameters, gradients, state of the optimizer, and the outputs of all layers."""
    training = configuration.training()
    parameters = sum(each.nbytes for each in training.model.parameters())
    copies = {"adamw": 4, "adamw-fused": 4, "sgd": 3, "sgd-plain": 2}[configuration.optimizer]
    outputs: list[int] = []

    def add(_module: Any, _args: Any, result: torch.Tensor) -> None:
        outputs.append(result.numel() * (2 if training.autocast else 4))

    hooks = [
        module.register_forward_hook(add)
        for module in training.model.modules()
        if not list(module.children())
    ]
    training.loss_of(training.model, training.micro_batches[0])
    for hook in hooks:
        hook.remove()
    return copies * parameters + sum(outputs)


def errors(rows: Sequence[Mapping[str, Any]], way: str, amount: str) -> list[float]:
    """Relative errors, without signs."""
    found = []
    for row in rows:
        value = row[way][amount] if way == "predicted" else row[way]
        found.append(abs(value / row["measured"][amount] - 1))
    return found


def print_errors(rows: Sequence[Mapping[str, Any]]) -> None:
    """Mean and worst error per set of rows and way."""
    table = Table(box=box.SIMPLE_HEAD, title="Errors of peaks", title_justify="left")
    table.add_column("rows")
    table.add_column("way")
    for amount, which in itertools.product(AMOUNTS[:2], ("mean", "worst")):
        table.add_column(f"{amount}: {which}", justify="right")
    sets = {
        "seen": functools.partial(_is_seen, True),
        "held out": functools.partial(_is_seen, False),
    }
    for model in dict.fromkeys(row["model"] for row in rows):
        sets[f"held out, {model}"] = functools.partial(_is_of, model)
    for (name, belongs), way in itertools.product(sets.items(), _WAYS):
        chosen = [row for row in rows if belongs(row)]
        if chosen:
            found = [errors(chosen, way, amount) for amount in AMOUNTS[:2]]
            cells = [f(each) for each in found for f in (_mean, max)]
            table.add_row(f"{name} ({len(chosen)})", way, *(f"{cell:.2%}" for cell in cells))
    table_console().print(table)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _is_seen(is_seen: bool, row: Mapping[str, Any]) -> bool:
    return bool(row["is_seen"]) is is_seen


def _is_of(model: str, row: Mapping[str, Any]) -> bool:
    return not row["is_seen"] and row["model"] == model


if __name__ == "__main__":
    run_script(main)
