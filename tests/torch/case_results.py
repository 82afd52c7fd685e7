"""What jobs that run ``cases.py`` have written, and the one process that they are compared with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

_WORKER = str(Path(__file__).with_name("case_worker.py"))


def read(folder: Path, rank: int) -> dict[str, Any]:
    """What ``rank`` wrote below ``folder``, with the values themselves."""
    path = folder / "results" / f"worker-{rank}"
    record: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    return {**record, "values": torch.load(path.with_suffix(".pt"))}


def run_single(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """What one process makes of all ranks' batches."""
    environment = {**os.environ, "BYTEPROPHET_RUN": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, _WORKER, "single", *names]
    subprocess.run(command, env=environment, check=True, timeout=300)
    return read(folder, 0)
