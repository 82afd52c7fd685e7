"""The peak memory of ranks, predicted and measured, for ``memory.py``: of ours, DDP and FSDP2."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recorded import PROGRESS

from byteprophet.launcher import JobSpec, run_job

RUNTIMES = ("byteps", "allreduce", "dear", "dear-planned", "ddp")
RANKED = ("gpt", "dlrm")
_HERE = Path(__file__).parent
_LONGEST_S = 600.0


def rank_rows(library: Path) -> list[dict[str, Any]]:
    """One row per model and runtime: the rank with the highest peak of two."""
    rows = []
    for model in RANKED:
        for runtime in RUNTIMES:
            PROGRESS.print(f"memory: {model}, two ranks of {runtime}", markup=False)
            servers = 1 if runtime == "byteps" else 0
            found = _measured((_HERE / "memory_rank.py", model, runtime), library, servers)
            rows.append({"model": model, "runtime": runtime, **_highest(found)})
    return rows


def sharded_rows(model: str, library: Path) -> list[dict[str, Any]]:
    """One row per kind of FSDP2's units and optimizer: the rank with the highest peak of two."""
    found = _measured((_HERE / "memory_sharded.py", model), library, servers=0)
    return [{"model": model, **_highest(ranks)} for ranks in zip(*found, strict=True)]


def _measured(command: tuple[object, ...], library: Path, servers: int) -> list[Any]:
    """What each of two ranks has written."""
    with tempfile.TemporaryDirectory() as folder:
        spec = JobSpec(
            command=(sys.executable, *map(str, command)),
            run_directory=Path(folder) / "run",
            workers=2,
            servers=servers,
            environment={"LD_PRELOAD": str(library), "BYTEPROPHET_FORK_SERVER": "0"},
            timeout_s=_LONGEST_S,
        )
        run_job(spec, None).check()
        paths = sorted((Path(folder) / "run").glob("rank-*.json"))
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def _highest(ranks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return max(ranks, key=lambda each: each["measured_bytes"])
