"""The peak memory of ranks under each runtime, predicted and measured, for ``memory.py``."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from recorded import PROGRESS

from byteprophet.launcher import JobSpec, run_job

RUNTIMES = ("byteps", "allreduce", "dear", "dear-planned")
RANKED = ("gpt", "dlrm")
_WORKER = Path(__file__).parent / "memory_rank.py"
_LONGEST_S = 600.0


def rank_rows(library: Path) -> list[dict[str, Any]]:
    """One row per model and runtime: the rank with the highest peak of two."""
    rows = []
    for model in RANKED:
        for runtime in RUNTIMES:
            PROGRESS.print(f"memory: {model}, two ranks of {runtime}", markup=False)
            rows.append({"model": model, "runtime": runtime, **_measured(model, runtime, library)})
    return rows


def _measured(model: str, runtime: str, library: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        spec = JobSpec(
            command=(sys.executable, str(_WORKER), model, runtime),
            run_directory=Path(folder) / "run",
            workers=2,
            servers=1 if runtime == "byteps" else 0,
            environment={"LD_PRELOAD": str(library), "BYTEPROPHET_FORK_SERVER": "0"},
            timeout_s=_LONGEST_S,
        )
        run_job(spec, None).check()
        paths = sorted((Path(folder) / "run").glob("rank-*.json"))
        found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    highest: dict[str, Any] = max(found, key=lambda each: each["measured_bytes"])
    return highest
