"""Scripts that use DistributedDataParallel, with and without BYTEPROPHET_SYNC.

    python experiments/ddp_own_tests.py [--ranks 2,3] [--syncs dear-planned] [--only lbfgs,closure]
    python experiments/ddp_own_tests.py --device cuda --backend nccl

Runs the scripts of ``tests/torch/ddp/scripts`` in one job per number of ranks and sync, and in one
or two without byteprophet. A row of the table says what came out of a script on all ranks. "same":
every bit is that of the job without byteprophet, and our synchronisers have exchanged the
gradients. "DDP": the same, and DistributedDataParallel has exchanged them itself.

With more than two ranks, sums depend on their order. In the job without byteprophet, a
communication hook then adds up gradients in the order in which ours does, and compares every
average with DistributedDataParallel's own (``rank_order.py``). Where that job gives other bits, the
script is run as it is, too: DistributedDataParallel itself may have exchanged its gradients.

With ``--device cuda``, all tensors of the scripts are on a GPU, which ranks may share. "cannot": a
script does not run there without byteprophet either (it needs a CPU, or an operator that there is
not); such scripts are not counted.

Exit status 1 if a result differs. Two minutes per job of two ranks on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
_IN_RANK_ORDER = "--in-rank-order"
_CANNOT = "cannot"
_BACKENDS = {"gloo": ("--gpu",), "nccl": ("--gpu", "--nccl")}
_LIMIT_S = 3600.0
_progress = progress_of("ddp_own_tests")


@dataclass(frozen=True)
class Ran:
    """What the ranks of one job wrote, by script, and what they printed about byteprophet."""

    rows: Sequence[Mapping[str, Mapping[str, Any]]]
    values: Sequence[Mapping[str, Any]]
    said: Counter[str]

    def digests(self, name: str) -> list[str]:
        """The digest of each rank's result; "" where there is none."""
        return [own.get(name, {}).get("digest", "") for own in self.rows]

    def error(self, name: str) -> str:
        """What went wrong on the first rank on which something did; else ""."""
        for rank, own in enumerate(self.rows):
            if name not in own:
                return f"rank {rank} has no result"
            if own[name].get("error"):
                return f"rank {rank}: {own[name]['error']}"
        return ""


def main(arguments: Sequence[str]) -> None:
    """Run the jobs and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--ranks", default="2", help="numbers of ranks")
    parser.add_argument("--syncs", default=",".join(OURS), help="values of BYTEPROPHET_SYNC")
    parser.add_argument("--only", help="these scripts alone")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--backend", default="gloo", choices=tuple(_BACKENDS), help="with cuda")
    parser.add_argument("--limit", type=float, default=_LIMIT_S, help="seconds for a job")
    given = parser.parse_args(arguments)
    on_gpu = given.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no GPU here")
    if given.backend != "gloo" and not on_gpu:
        raise UserError(f"--backend {given.backend}: needs --device cuda")
    where = _BACKENDS[given.backend] if on_gpu else ()
    names = split(given.only, "--only") if given.only else []
    sizes = [_ranks(text) for text in split(given.ranks, "--ranks")]
    syncs = split(given.syncs, "--syncs")
    others = [sync for sync in syncs if sync not in OURS]
    if others and max(sizes) > 2:
        raise UserError(
            f"--syncs {others[0]}: with more than two ranks, its sums have no fixed order, so only "
            f"{', '.join(OURS)} can be compared"
        )
    jobs = _Jobs(names, where, given.limit)
    failed = sum(_compare(ranks, syncs, jobs) for ranks in sizes)
    if failed:
        raise JobFailed(f"{failed} results differ from DistributedDataParallel's own")


def _ranks(text: str) -> int:
    ranks = whole_number(text)
    if ranks is None or ranks < 2:
        raise UserError(f"--ranks {text}: must be numbers from 2")
    return ranks


@dataclass(frozen=True)
class _Jobs:
    """What all jobs have in common.

    Attributes:
        names: the scripts that run; empty: all.
        where: options of ``run.py`` for the device; empty: the CPU.
        limit_s: after which a job is ended.
    """

    names: Sequence[str]
    where: Sequence[str]
    limit_s: float


def _compare(ranks: int, syncs: Sequence[str], jobs: _Jobs) -> int:
    """Run all jobs of one number of ranks, and print their table; how many results differ."""
    exact = [_run("", ranks, jobs, in_rank_order=ranks > 2)]
    ran = {sync: _run(sync, ranks, jobs) for sync in syncs}
    if ranks > 2:
        rest = [
            name
            for name in exact[0].rows[0]
            if any(each.digests(name) != exact[0].digests(name) for each in ran.values())
        ]
        if rest:
            exact.append(_run("", ranks, replace(jobs, names=rest)))
    return _show(ranks, exact, ran, may_not_run=bool(jobs.where))


def _run(sync: str, ranks: int, jobs: _Jobs, *, in_rank_order: bool = False) -> Ran:
    how = "sums in the order of ranks" if in_rank_order else sync or "without byteprophet"
    _progress(f"{ranks} ranks, {how}")
    said: Counter[str] = Counter()

    def note(_role: str, line: str) -> None:
        if "exchanges its gradients itself: " in line:
            said[line.partition("itself: ")[2]] += 1

    options = [*jobs.where, *([_IN_RANK_ORDER] if in_rank_order else [])]
    with tempfile.TemporaryDirectory() as folder:
        spec = JobSpec(
            command=(sys.executable, str(_SCRIPTS), folder, *options, *jobs.names),
            run_directory=Path(folder) / "run",
            workers=ranks,
            servers=int(sync == BYTEPS),
            ranks=sync == BYTEPS,
            environment={SYNC: sync, "BYTEPROPHET_TIMEOUT_S": "120"},
            timeout_s=jobs.limit_s,
        )
        result = run_job(spec, note)
        if result.failed is not None:
            _progress(f"the job failed: {result.failed}")
        files = [Path(folder) / f"rank-{rank}" for rank in range(ranks)]
        rows = [_rows(file.with_suffix(".jsonl")) for file in files]
        values = [_values(file.with_suffix(".pt")) for file in files]
    return Ran(rows, values, said)


def _rows(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    return {row["script"]: row for row in map(json.loads, path.read_text().splitlines())}


def _values(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(path) if path.exists() else {}
    return found


def _show(ranks: int, exact: Sequence[Ran], syncs: Mapping[str, Ran], *, may_not_run: bool) -> int:
    """Print the table of one number of ranks. Returns how many results differ.

    ``may_not_run``: some scripts may not run on this device, whoever exchanges gradients.
    """
    console = Console(width=110)
    table = Table(title=f"{ranks} ranks", box=box.SIMPLE, pad_edge=False)
    table.add_column("script")
    for sync in syncs:
        table.add_column(sync)
    counts: Counter[str] = Counter()
    names = exact[0].rows[0]
    for name in names:
        broken = may_not_run and exact[0].error(name)
        verdicts = [_CANNOT if broken else verdict(name, exact, ran) for ran in syncs.values()]
        counts.update(said.partition(":")[0] for said in verdicts)
        table.add_row(name.replace("_", " "), *verdicts)
    console.print(table)
    tried = sum(counts.values()) - counts[_CANNOT]
    bad = tried - counts["same"] - counts["DDP"]
    console.print(
        f"{tried} results of {len(names)} scripts: {counts['same']} same, by our "
        f"synchronisers; {counts['DDP']} same, by DistributedDataParallel itself; {bad} differ",
        soft_wrap=True,
    )
    compared = [row for own in exact[0].rows for row in own.values() if row.get("averages")]
    if compared:
        console.print(
            f"{sum(row['averages'] for row in compared)} averages compared with "
            "DistributedDataParallel's own: at most "
            f"{max(row['apart'] for row in compared):.2f} of what rounding explains apart",
            soft_wrap=True,
        )
    reasons = sum((ran.said for ran in syncs.values()), Counter[str]())
    for reason, number in sorted(reasons.items()):
        line = f"  {number} x exchanges its gradients itself: {reason}"
        console.print(line, highlight=False, soft_wrap=True)
    return bad


def verdict(name: str, exact: Sequence[Ran], ran: Ran) -> str:
    """What came out of the script ``name`` in ``ran``, which must be that of one of ``exact``."""
    error = ran.error(name)
    if error:
        return f"error: {error}"
    for each in exact:
        if not each.error(name) and each.digests(name) == ran.digests(name):
            return "same" if ran.rows[0][name]["by"] == "ours" else "DDP"
    right = exact[-1] if name in exact[-1].rows[0] else exact[0]
    error = right.error(name)
    if error:
        return f"error: without byteprophet, {error}"
    for rank, own in enumerate(ran.values):
        apart = _apart(right.values[rank].get(name, ()), own.get(name, ()))
        if right.digests(name)[rank] != ran.digests(name)[rank]:
            return f"differs: rank {rank}, by up to {apart:.2g}"
    raise AssertionError(name)


def _apart(ones: Sequence[Any], others: Sequence[Any]) -> float:
    """The largest difference between values of tensors of the same shapes."""
    pairs = [(one.double(), other.double()) for one, other in zip(ones, others, strict=False)]
    apart = (float((one - other).abs().max()) for one, other in pairs if one.numel())
    return max(apart, default=0.0)


if __name__ == "__main__":
    run_script(main)
