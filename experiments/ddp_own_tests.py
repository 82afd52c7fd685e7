"""Scripts that use DistributedDataParallel, with and without BYTEPROPHET_SYNC.

    python experiments/ddp_own_tests.py [--ranks 2,3] [--syncs dear-planned] [--only lbfgs,closure]

Runs the scripts of ``tests/torch/ddp/scripts`` in one job per number of ranks and sync, and once
without byteprophet. A row of the table says what came out of a script on all ranks. "same": every
bit is that of the job without byteprophet. With more than two ranks, every value is close to it,
because the order of sums differs, and all ranks have the same bits. "DDP": the same, and
DistributedDataParallel has exchanged the gradients itself. Exit status 1 if a result differs. Two
minutes per job on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from script import progress_of, run_script

from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError
from byteprophet.input_files import whole_number
from byteprophet.job.strategy import BYTEPS, OURS
from byteprophet.launcher import JobSpec, run_job
from byteprophet.runtime_settings import SYNC

_SCRIPTS = Path(__file__).parents[1] / "tests" / "torch" / "ddp" / "scripts" / "run.py"
_LIMIT_S = 1800.0
_CLOSE = 1e-3, 1e-5  # relative and absolute
_CLOSE_IN_HALF = 1e-2, 1e-3
_HALF = (
    "bfloat16_model",
    "grad_scaler_and_autocast",
    "half_precision",
    "parameters_of_several_types",
)
"""Scripts that compute with half the bits."""
_progress = progress_of("ddp_own_tests")


@dataclass(frozen=True)
class Ran:
    """What the ranks of one job wrote, and what they printed about byteprophet."""

    rows: Sequence[Mapping[str, Mapping[str, str]]]
    values: Sequence[Mapping[str, Any]]
    said: Counter[str]


def main(arguments: Sequence[str]) -> None:
    """Run the jobs and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--ranks", default="2", help="numbers of ranks")
    parser.add_argument("--syncs", default=",".join(OURS), help="values of BYTEPROPHET_SYNC")
    parser.add_argument("--only", help="these scripts alone")
    given = parser.parse_args(arguments)
    names = split(given.only, "--only") if given.only else []
    failed = 0
    for text in split(given.ranks, "--ranks"):
        ranks = whole_number(text)
        if ranks is None or ranks < 2:
            raise UserError(f"--ranks {text}: must be numbers from 2")
        plain = _run("", ranks, names)
        syncs = {sync: _run(sync, ranks, names) for sync in split(given.syncs, "--syncs")}
        failed += _show(ranks, plain, syncs)
    if failed:
        raise JobFailed(f"{failed} results differ from DistributedDataParallel's own")


def _run(sync: str, ranks: int, names: Sequence[str]) -> Ran:
    _progress(f"{ranks} ranks, {sync or 'without byteprophet'}")
    said: Counter[str] = Counter()

    def note(_role: str, line: str) -> None:
        if "exchanges its gradients itself: " in line:
            said[line.partition("itself: ")[2]] += 1

    with tempfile.TemporaryDirectory() as folder:
        spec = JobSpec(
            command=(sys.executable, str(_SCRIPTS), folder, *names),
            run_directory=Path(folder) / "run",
            workers=ranks,
            servers=int(sync == BYTEPS),
            ranks=sync == BYTEPS,
            environment={SYNC: sync, "BYTEPROPHET_TIMEOUT_S": "120"},
            timeout_s=_LIMIT_S,
        )
        result = run_job(spec, note)
        if result.failed is not None:
            _progress(f"the job failed: {result.failed}")
        files = [Path(folder) / f"rank-{rank}" for rank in range(ranks)]
        rows = [_rows(file.with_suffix(".jsonl")) for file in files]
        values = [_values(file.with_suffix(".pt")) for file in files]
    return Ran(rows, values, said)


def _rows(path: Path) -> dict[str, dict[str, str]]:
    if not path.exists():
        return {}
    return {row["script"]: row for row in map(json.loads, path.read_text().splitlines())}


def _values(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(path) if path.exists() else {}
    return found


def _show(ranks: int, plain: Ran, syncs: Mapping[str, Ran]) -> int:
    """Print the table of one number of ranks. Returns how many results differ."""
    console = Console(width=110)
    table = Table(title=f"{ranks} ranks", box=box.SIMPLE, pad_edge=False)
    table.add_column("script")
    for sync in syncs:
        table.add_column(sync)
    counts: Counter[str] = Counter()
    for name in plain.rows[0]:
        verdicts = [_verdict(name, plain, ran) for ran in syncs.values()]
        counts.update(verdict.partition(":")[0] for verdict in verdicts)
        table.add_row(name.replace("_", " "), *verdicts)
    console.print(table)
    tried = sum(counts.values())
    bad = tried - counts["same"] - counts["DDP"]
    console.print(
        f"{tried} results of {len(plain.rows[0])} scripts: {counts['same']} same, by our "
        f"synchronisers; {counts['DDP']} same, by DistributedDataParallel itself; {bad} differ"
    )
    reasons = sum((ran.said for ran in syncs.values()), Counter[str]())
    for reason, number in sorted(reasons.items()):
        console.print(f"  {number} x exchanges its gradients itself: {reason}", highlight=False)
    return bad


def _verdict(name: str, plain: Ran, ran: Ran) -> str:
    for rank, (before, after) in enumerate(zip(plain.rows, ran.rows, strict=True)):
        if name not in after:
            return f"no result: rank {rank}"
        errors = [row[name].get("error", "") for row in (before, after)]
        if any(errors):
            return f"error: {' / '.join(errors)}"
        same = before[name]["digest"] == after[name]["digest"]
        if len(plain.rows) > 2 and not same:
            pairs = zip(plain.values[rank][name], ran.values[rank][name], strict=True)
            relative, absolute = _CLOSE_IN_HALF if name in _HALF else _CLOSE
            same = all(
                torch.allclose(one.double(), two.double(), rtol=relative, atol=absolute)
                for one, two in pairs
            )
            alike = [len({row[name]["digest"] for row in each.rows}) for each in (plain, ran)]
            same = same and alike[0] == alike[1]
        if not same:
            return f"differs: rank {rank}"
    return "same" if ran.rows[0][name]["by"] == "ours" else "DDP"


if __name__ == "__main__":
    run_script(main)
