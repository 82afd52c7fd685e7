"""What AdamW's state takes on each rank: DistributedDataParallel beside our all-reduce runtimes.

    python experiments/state_memory.py

Real training of linear layers over loopback. Printed per runtime and number of ranks, of the rank
with the most:

- *state*: bytes of the tensors in ``optimizer.state``, over those of the parameters;
- *grown*: by how much the peak of the process's memory from the first ``step()`` on lies above
  what it had before, over the same: state, and whatever else steps need, buffers of what travels
  among it.

AdamW keeps two numbers per parameter: *state* is 2 where all ranks have all of it and should be 2/P
under ``dear``. Under ``dear-planned`` it is between the two, as groups whose averages travel before
``step()`` keep all of theirs. Writes
``state_memory.json`` to experiments/results. Two minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recorded import PROGRESS, RESULTS
from results_file import write_results
from rich import box
from rich.console import Console
from rich.table import Table
from script import run_script

from byteprophet.bench import describe_machine
from byteprophet.launcher import JobSpec, run_job

RUNTIMES = ("ddp", "allreduce", "dear", "dear-planned")
RANKS = (2, 4)
_PRINTED = ("state_bytes", "grown_bytes")
_WORKER = Path(__file__).parent / "state_memory_worker.py"
_LONGEST_S = 300.0


def main(arguments: Sequence[str]) -> None:
    """Run, write, print."""
    parser = argparse.ArgumentParser(description="Measure the memory of optimizer state.")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1448)
    parser.add_argument("--iterations", type=int, default=16, help="the plan comes after 12 or so")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    settings = {name: getattr(options, name) for name in ("layers", "width", "iterations")}
    rows = []
    for ranks in RANKS:
        for runtime in RUNTIMES:
            PROGRESS.print(f"state_memory: {runtime}, {ranks} ranks", markup=False)
            measured = _measure(runtime, ranks, list(settings.values()))
            rows.append({"runtime": runtime, "ranks": ranks, **measured})
    content = {"schema": 1, "machine": describe_machine(), "settings": settings, "results": rows}
    write_results(options.out / "state_memory.json", content)
    table = Table("runtime", "ranks", "state", "grown", box=box.SIMPLE)
    for row in rows:
        table.add_row(
            row["runtime"],
            str(row["ranks"]),
            *(f"{row[name] / row['parameters_bytes']:.2f}" for name in _PRINTED),
        )
    Console().print(table)


def _measure(runtime: str, ranks: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Of the rank with the most of each."""
    with tempfile.TemporaryDirectory() as folder:
        spec = JobSpec(
            command=(sys.executable, str(_WORKER), runtime, *map(str, sizes)),
            run_directory=Path(folder) / "run",
            workers=ranks,
            servers=0,
            timeout_s=_LONGEST_S,
        )
        run_job(spec, None).check()
        paths = sorted((Path(folder) / "run").glob("memory-*.json"))
        found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return {name: max(each[name] for each in found) for name in found[0]}


if __name__ == "__main__":
    run_script(main)
