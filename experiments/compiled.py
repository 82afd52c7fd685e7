"""``torch.compile`` and overlap: the same bits with and without, and nothing compiled twice.

    python experiments/compiled.py

Two ranks train four blocks with AdamW over loopback, with updates that take a while. Compiled are
single blocks, halves, the whole model, blocks and the model in place, or a function around the
model; from the start, or after four eager iterations (``-late``). Printed per synchroniser,
transport and way:

- *parameters*: digests with ``BYTEPROPHET_OVERLAP=0`` and ``1``; they must be equal, on all ranks;
- *compiled*: how many frames torch compiled, without and with overlap. More with overlap would be
  our doing. For a function compiled late it is: see ``Front.before_compiling``.

Exit status 1 where digests differ. ``--backend inductor`` takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compiled_worker import PARTS
from recorded import PROGRESS
from rich import box
from rich.console import Console
from rich.table import Table
from script import run_script

from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed
from byteprophet.launcher import JobSpec, run_job

WAYS = (*PARTS, *(f"{name}-late" for name in PARTS if name != "eager"))
JOBS = (
    ("byteps", "byteps"),
    *((sync, transport) for sync in ("allreduce", "dear", "dear-planned")
      for transport in ("sockets", "collectives")),
)  # fmt: skip
_WORKER = Path(__file__).parent / "compiled_worker.py"
_LONGEST_S = 1800.0

Ranks = list[dict[str, Any]]


def main(arguments: Sequence[str]) -> None:
    """Run, print, fail where overlap changes results."""
    parser = argparse.ArgumentParser(
        description="Compare compiled training with and without overlap."
    )
    parser.add_argument("--backend", default="aot_eager", help="torch.compile's")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--syncs", default=",".join(dict.fromkeys(sync for sync, _ in JOBS)))
    options = parser.parse_args(arguments)
    ways, syncs = split(options.ways, "--ways"), split(options.syncs, "--syncs")
    table = Table("sync", "transport", "way", "parameters", "compiled", box=box.SIMPLE)
    differing = 0
    for sync, transport in JOBS:
        if sync not in syncs:
            continue
        PROGRESS.print(f"compiled: {sync} by {transport}", markup=False)
        barriered, overlapped = run_ways({sync: ways}, transport, options.backend)[sync]
        for way in ways:
            digests = sorted({rank[way]["digest"] for rank in (*barriered, *overlapped)})
            differing += len(digests) > 1
            compiled = [
                max(rank[way]["compiled"] for rank in each) for each in (barriered, overlapped)
            ]
            table.add_row(sync, transport, way, " ".join(digests), "{} {}".format(*compiled))
    Console().print(table)
    if differing:
        raise JobFailed(f"parameters differ in {differing} rows")


def run_ways(
    ways: Mapping[str, Sequence[str]], transport: str, backend: str
) -> dict[str, tuple[Ranks, Ranks]]:
    """Run the ``ways`` of each sync, all in one job.

    Returns, per sync, what each rank wrote without overlap, and with it.
    """
    with tempfile.TemporaryDirectory() as folder:
        byteps = "byteps" in ways
        given = [f"{sync}={','.join(its_ways)}" for sync, its_ways in ways.items()]
        spec = JobSpec(
            command=(sys.executable, str(_WORKER), backend, *given),
            run_directory=Path(folder) / "run",
            servers=int(byteps),
            ranks=byteps,
            environment={} if transport == "byteps" else {"BYTEPROPHET_TRANSPORT": transport},
            timeout_s=_LONGEST_S,
        )
        run_job(spec, None).check()
        paths = sorted((Path(folder) / "run").glob("compiled-*.json"))
        ranks = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    results = {}
    for sync in ways:
        without, overlapped = zip(*(rank[sync] for rank in ranks), strict=True)
        results[sync] = list(without), list(overlapped)
    return results


if __name__ == "__main__":
    run_script(main)
