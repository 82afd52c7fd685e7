"""Jobs of ``shared_worker.py`` and others, without servers: started, waited for, compared."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import torch

from byteprophet.launcher.checks import root_port

from ..python_process import start_python

FOLDER = Path(__file__).parent
WORKER = "shared_worker.py"
LIMIT_S = 280.0


def start(ranks: int, worker: str = WORKER, **options: Any) -> list[subprocess.Popen[str]]:
    """Start a job; nobody ends its other ranks when one has failed."""
    port = root_port(None, "127.0.0.1")
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    return [
        start_python(
            FOLDER / worker,
            json.dumps(options),
            env={**os.environ, **places, "RANK": str(rank), "BYTEPROPHET_TIMEOUT_S": "200"},
            stderr=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]


def train(folder: Path, ranks: int, **options: Any) -> list[dict[str, Any]]:
    """Run a job to its end; gives what each rank has saved."""
    succeed(start(ranks, out=str(folder), **options))
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(ranks)]


def succeed(ranks: list[subprocess.Popen[str]]) -> None:
    """Wait for the end of all; none is left behind."""
    try:
        for process in ranks:
            _, said = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, said
    finally:
        for process in ranks:
            process.kill()


def fail(process: subprocess.Popen[str]) -> str:
    """Wait for its end; gives its last words."""
    try:
        _, said = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode != 0
    return said


def assert_alike(results: list[dict[str, Any]]) -> None:
    """All ranks have the same parameters and state, bit for bit."""
    for other in results[1:]:
        torch.testing.assert_close(other["parameters"], results[0]["parameters"], rtol=0, atol=0)
        torch.testing.assert_close(other["state"], results[0]["state"], rtol=0, atol=0)
