"""Profiles training on a GPU, for ``traces.py`` to replay.

    python experiments/gpu_traces.py FOLDER [--kinds gpt,gpt-item,resnet-events,gpt-nccl]
    python experiments/traces.py FOLDER

Writes a trace of ``torch.profiler`` for each kind of job, or a folder of them for jobs of two
ranks, which may share one GPU (``gpu_traces_worker.py`` has the kinds). The second command needs no
GPU. A job that fails is named, and the others go on; exit status 1 then. Two minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from script import progress_of, run_script

from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError

_WORKER = Path(__file__).with_name("gpu_traces_worker.py")
_KINDS = (
    *("gpt", "gpt-events", "gpt-half-events", "gpt-quarter-events", "gpt-item", "gpt-item-events"),
    *("resnet", "resnet-events", "gpt-copies-item", "gpt-copies-item-events"),
    *("gpt-branches", "gpt-branches-events"),
    *("gpt-gloo-events", "gpt-nccl", "gpt-nccl-events", "gpt-half-nccl-events"),
)
_LIMIT_S = 60.0
_progress = progress_of("gpu_traces")


def main(arguments: Sequence[str]) -> None:
    """Make all traces."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where traces are written")
    parser.add_argument("--kinds", default=",".join(_KINDS), help="these jobs alone")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise UserError("torch sees no GPU here")
    options.folder.mkdir(parents=True, exist_ok=True)
    failed = [kind for kind in split(options.kinds, "--kinds") if not _make(kind, options.folder)]
    if failed:
        raise JobFailed(f"no trace of {', '.join(failed)}")


def _make(kind: str, folder: Path) -> bool:
    """Whether the job's traces were made."""
    ranks = 2 if {"gloo", "nccl"} & set(kind.split("-")) else 1
    with tempfile.TemporaryDirectory() as store:
        paths = [folder / f"{kind}.json.gz"]
        if ranks > 1:
            (folder / kind).mkdir(exist_ok=True)
            paths = [folder / kind / f"rank{rank}.json.gz" for rank in range(ranks)]
        more = [[str(rank), f"{store}/store"] if ranks > 1 else [] for rank in range(ranks)]
        started = [
            subprocess.Popen(
                [sys.executable, str(_WORKER), kind, str(path), *own],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stderr=subprocess.PIPE,
                text=True,
            )
            for path, own in zip(paths, more, strict=True)
        ]
        errors = [_error_of(process) for process in started]
    for rank, error in enumerate(errors):
        if error:
            _progress(f"{kind}: rank {rank}: {error}")
    return not any(errors)


def _error_of(process: subprocess.Popen[str]) -> str:
    """The last line of what it said if it failed, in time; else empty."""
    try:
        said = process.communicate(timeout=_LIMIT_S)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"took more than {_LIMIT_S:.0f} s"
    lines = said.strip().splitlines() or ["it said nothing"]
    return "" if process.returncode == 0 else lines[-1]


if __name__ == "__main__":
    run_script(main)
