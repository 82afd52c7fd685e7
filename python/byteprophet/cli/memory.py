"""``byteprophet memory``: what a training script's iteration will take on a GPU, without one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from byteprophet.cli.lists import split
from byteprophet.cli.sizes import parse_size
from byteprophet.cli.targets import check_targets
from byteprophet.errors import UserError
from byteprophet.input_files import whole_number
from byteprophet.memory.cuda.gpu import DEFAULT, GPUS
from byteprophet.report.console import table_console
from byteprophet.simulate.models.own_code import import_make, refusing_failures
from byteprophet.whole_files import write_whole

if TYPE_CHECKING:
    from byteprophet.memory.cuda.peak import CudaPeak

SCHEMA = 1
_MOST_BATCH = 1 << 24
_ROWS = 12
_MIB = 1 << 20

_HELP = """Predict the memory of a training iteration on a GPU, without one.

TRAINING is module:function, a function of a batch size in the working directory that returns a
byteprophet.memory.training.Training: the model, its inputs, its loss and its optimizer (they may be
on the meta device; docs/gpu-memory.md).

The iteration runs three times without data, and PyTorch's caching allocator is simulated. Prints
the peaks of allocated and reserved memory, as torch.cuda.max_memory_allocated and
max_memory_reserved would give them, and what lives at the peak. Ends with status 1 if a batch size
does not fit --limit.

Example: byteprophet memory iteration:training --batch 8,16 --limit 139GiB
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("memory", help=_HELP)(memory)


def memory(
    training: Annotated[str, typer.Argument(metavar="TRAINING", help="module:function.")],
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")],
    gpu: Annotated[str, typer.Option(help=f"One of {', '.join(GPUS)}.")] = DEFAULT,
    limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="What the allocator may take, e.g. 139GiB."),
    ] = None,
    recompute: Annotated[
        str | None,
        typer.Option(metavar="MODULE,...", help="Modules under torch.utils.checkpoint."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> int:
    """See _HELP."""
    if gpu not in GPUS:
        raise UserError(f"--gpu {gpu}: must be one of {', '.join(GPUS)}")
    limit_bytes = None if limit is None else parse_size(limit, "--limit")
    paths = [] if recompute is None else split(recompute, "--recompute")
    batches = [_batch(text) for text in split(batch, "--batch")]
    check_targets({"--json": json_file})
    make = import_make(training)
    peaks = {size: _predict(training, make, size, gpu, paths, limit_bytes) for size in batches}
    _print(peaks, gpu)
    if json_file is not None:
        rows = [{"batch": size, **dataclasses.asdict(peak)} for size, peak in peaks.items()]
        content = {"schema": SCHEMA, "gpu": gpu, "limit_bytes": limit_bytes, "rows": rows}
        write_whole(json_file, json.dumps(content, indent=1) + "\n")
    return 1 if any(peak.failed for peak in peaks.values()) else 0


def _batch(text: str) -> int:
    size = whole_number(text)
    if size is None or not 1 <= size <= _MOST_BATCH:
        raise UserError(f"--batch {text[:40]}: must be from 1 to {_MOST_BATCH}")
    return size


def _predict(
    name: str, make: Any, batch: int, gpu: str, paths: list[str], limit_bytes: int | None
) -> CudaPeak:
    from byteprophet.memory.cuda.peak import predict_cuda_peak  # which imports torch
    from byteprophet.memory.training import Training

    with refusing_failures(name):
        made = make(batch)
        if not isinstance(made, Training):
            raise UserError(
                f"{name}: returns {type(made).__name__}: must return a "
                "byteprophet.memory.training.Training"
            )
        return predict_cuda_peak(made, GPUS[gpu], paths, limit_bytes)


def _print(peaks: dict[int, CudaPeak], gpu: str) -> None:
    console = table_console()
    title = f"Peaks on {gpu} in MiB"
    if not GPUS[gpu].was_compared:
        title += f" ({gpu} was not compared with measurements)"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for name in ("batch", "allocated", "reserved", "split", "segments", "retries", ""):
        table.add_column(name, justify="right")
    for size, peak in peaks.items():
        sizes = (peak.allocated_bytes, peak.reserved_bytes, peak.inactive_split_bytes)
        table.add_row(
            str(size),
            *(f"{each / _MIB:.1f}" for each in sizes),
            str(peak.segments),
            str(peak.retries),
            "" if peak.failed is None else "does not fit",
        )
    console.print(table)
    for size, peak in peaks.items():
        if peak.failed is not None:
            console.print(f"Batch {size} does not fit: {peak.failed}")
    size, last = next(reversed(peaks.items()))
    title = f"What lives then, batch {size}, in MiB"
    living = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    living.add_column("made by")
    living.add_column("blocks", justify="right")
    living.add_column("size", justify="right")
    for row in last.table[:_ROWS]:
        living.add_row(row.label, str(row.blocks), f"{row.size_bytes / _MIB:.1f}")
    rest = last.table[_ROWS:]
    if rest:
        blocks, rest_bytes = sum(row.blocks for row in rest), sum(row.size_bytes for row in rest)
        living.add_row("others", str(blocks), f"{rest_bytes / _MIB:.1f}")
    console.print(living)
