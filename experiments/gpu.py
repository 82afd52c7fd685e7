"""Training on a GPU: every scheduler and all-reduce runtime gives what plain torch gives.

    python experiments/gpu.py [--device cuda] [--ways prophet,dear:nccl] [--cases conv,half]

Two ranks train small networks on one GPU, or on two: convolutions, an embedding, parameters of 16
bits, mixed precision, clipping, accumulation, AdamW's fused and foreach kernels, ``torch.compile``,
streams other than the default one, tensors in host memory. By BytePS' servers over loopback
(``stock`` and the policies; ``upstream`` is ``byteps.torch`` as shipped), and without servers over
gloo's and NCCL's collectives (``dear:nccl``; ``default`` is the process group that torch makes if
no backend is named). On one GPU, NCCL takes the two ranks for two hosts.

Printed per way and case, in comparison with one process that averages both ranks' gradients: ``=``
where all parameters are the same bits, else ``=ddp`` where they are DistributedDataParallel's, else
the largest difference, relative to the largest parameter. Sums are of two, so averages have no
choice but for these: half precision is divided before it is added up where there are no servers
(DistributedDataParallel does so, too); under ``dear`` clipping adds up norms of shards, and the
fused kernel for processors rounds by where a shard begins; and torch.compile compiles models of
DistributedDataParallel otherwise. Exit status 1 where bits differ
elsewhere, by more than rounding there, or between ranks. ``--device cpu`` needs no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from gpu_worker import CASES, RANKS
from rich import box
from rich.console import Console
from rich.table import Table
from script import progress_of, run_script

from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError
from byteprophet.launcher import JobSpec, run_job

_BY_SERVERS = ("upstream", "stock", "fifo", "p3", "bytescheduler", "prophet")
_SYNCS = ("allreduce", "dear", "dear-planned")
_BACKENDS = ("gloo", "nccl", "default")
_UPSTREAM_CASES = ("conv", "embedding", "fused", "foreach", "clipped", "elsewhere", "host_tensors")
_WORKER = str(Path(__file__).parent / "gpu_worker.py")
_LONGEST_S = 400.0
_PARTITION_BYTES = 64_000
_ROUNDING = 1e-5  # relative to the largest parameter
_ROUNDING_OF_HALVES = 2e-2
_ROUNDING_OF_CUT_GRAPHS = 1e-3  # torch.compile compiles DistributedDataParallel's models otherwise
_progress = progress_of("gpu")

Values = dict[str, list[torch.Tensor]]


def main(arguments: Sequence[str]) -> None:
    """Run every way, compare, print."""
    options = _parse(arguments)
    ways, cases = split(options.ways, "--ways"), split(options.cases, "--cases")
    _check(ways, cases)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("torch sees no GPU here; --device cpu needs none")
    with contextlib.ExitStack() as stack:
        scratch = options.runs or stack.enter_context(tempfile.TemporaryDirectory())
        alone = _alone(Path(scratch), options.device, cases)
        table = Table("way", *cases, "s", box=box.SIMPLE)
        failed, ddp = [], None
        for way in ways:
            began_s = time.monotonic()
            folder = Path(scratch) / way.replace(":", "-")
            try:
                ranks = _job(way, folder, options.device, _cases_of(way, cases))
            except JobFailed as error:
                failed.append(f"{way}: {error}")
                _progress(failed[-1])
                continue
            if way.startswith("ddp"):
                ddp = ranks[0]
            cells = {name: _compare(way, name, ranks, alone, ddp) for name in ranks[0]}
            bad = [f"{name}: {cell}" for name, (good, cell) in cells.items() if not good]
            failed.extend(f"{way}: {each}" for each in bad)
            _progress(f"{way}: {', '.join(f'{name} {cell}' for name, (_, cell) in cells.items())}")
            shown = (cells[name][1] if name in cells else "" for name in cases)
            table.add_row(way, *shown, f"{time.monotonic() - began_s:.0f}")
    Console(width=240).print(table)
    for line in failed:
        print(line)
    if failed:
        raise JobFailed(f"{len(failed)} did not hold")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare training on a GPU with plain torch.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    ways = [*_BY_SERVERS, "ddp:nccl", "ddp:gloo"]
    ways += [f"{sync}:{backend}" for backend in _BACKENDS for sync in _SYNCS]
    parser.add_argument("--ways", default=",".join(ways))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--runs", type=Path, help="directory in which to keep what jobs leave")
    return parser.parse_args(arguments)


def _check(ways: Sequence[str], cases: Sequence[str]) -> None:
    for way in ways:
        front, _, backend = way.partition(":")
        known = way in _BY_SERVERS or (front in (*_SYNCS, "ddp") and backend in _BACKENDS)
        if not known:
            raise UserError(f"--ways: there is no {way}")
    for case in cases:
        if case not in CASES:
            raise UserError(f"--cases: {case}: have {', '.join(CASES)}")


def _cases_of(way: str, cases: Sequence[str]) -> list[str]:
    return [name for name in cases if way != "upstream" or name in _UPSTREAM_CASES]


def _environment() -> dict[str, str]:
    return {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "1"}


def _alone(folder: Path, device: str, cases: Sequence[str]) -> Values:
    _progress("one process")
    command = [sys.executable, _WORKER, "alone", device, ",".join(cases), str(folder / "alone")]
    done = subprocess.run(
        command,
        env=os.environ | _environment(),
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    if done.returncode != 0:
        raise JobFailed(f"one process: {done.stderr[-2000:]}")
    values: Values = torch.load(folder / "alone" / "rank-0.pt")
    return values


def _job(way: str, folder: Path, device: str, cases: Sequence[str]) -> list[Values]:
    front, how = way, JobSpec(command=(), run_directory=folder / "run", workers=RANKS, servers=0)
    if way in _BY_SERVERS:
        front = "upstream" if way == "upstream" else "byteps"
        shipped = way in ("upstream", "stock")
        how = replace(
            how,
            servers=1,
            scheduler="stock" if shipped else way,
            partition_bytes=None if shipped else _PARTITION_BYTES,
        )
    spec = replace(
        how,
        command=(sys.executable, _WORKER, front, device, ",".join(cases), str(folder / "out")),
        environment={**_environment(), "BYTEPROPHET_TIMEOUT_S": "120"},
        timeout_s=_LONGEST_S,
    )
    run_job(spec, None).check()
    return [torch.load(folder / "out" / f"rank-{rank}.pt") for rank in range(RANKS)]


def _compare(
    way: str, case: str, ranks: Sequence[Values], alone: Values, ddp: Values | None
) -> tuple[bool, str]:
    """Whether it is as it should be, and what to print."""
    first = ranks[0][case]
    if not all(_equal(first, other[case]) for other in ranks[1:]):
        return False, "ranks differ"
    if _equal(first, alone[case]):
        return True, "="
    difference = max(
        float((one - other).abs().max() / other.abs().max().clamp(min=1e-9))
        for one, other in zip(first, alone[case], strict=True)
    )
    halves = case == "half" and way not in _BY_SERVERS
    shards = case in ("clipped", "fused") and way.startswith("dear")
    allowed = _ROUNDING_OF_HALVES if halves else _ROUNDING if shards else 0.0
    if case == "compiled" and way.startswith("ddp"):
        allowed = _ROUNDING_OF_CUT_GRAPHS
    if way.startswith("ddp"):
        return difference <= allowed, f"{difference:.1e}"
    as_ddp = ddp is not None and case in ddp and _equal(first, ddp[case])
    return difference <= allowed, "=ddp" if as_ddp else f"{difference:.1e}"


def _equal(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    run_script(main)
