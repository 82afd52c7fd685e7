"""Frameworks that wrap the model themselves, with and without BYTEPROPHET_SYNC.

    pip install accelerate transformers lightning
    python experiments/ddp_frameworks.py [--ranks 2,4] [--syncs dear-planned] [--only accelerate]
        [--resumed]

Trains small models by Accelerate, ``transformers.Trainer``, Lightning and Fabric, each with
clipping, accumulation, evaluation in mid-training and a checkpoint from which it goes on, in
float32 and under bfloat16 autocast (``frameworks/train.py``). Prints whether the parameters have
the bits of the job without byteprophet. With more than two ranks, that job adds up gradients in the
order in which ours does, and compares every average with DistributedDataParallel's own
(``tests/torch/ddp/scripts/rank_order.py``).

A checkpoint is saved and loaded in one job. With ``--resumed``, one job saves it and another one
goes on from it, with byteprophet in either, both or none. Exit status 1 if parameters differ. Half
a minute per job of two ranks on two cores.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from frameworks.train import FRAMEWORKS, IN_RANK_ORDER
from rich import box
from rich.console import Console
from rich.table import Table
from script import progress_of, run_script

from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError
from byteprophet.input_files import whole_number
from byteprophet.job.strategy import OURS
from byteprophet.launcher import JobSpec, run_job
from byteprophet.runtime_settings import SYNC

_TRAIN = Path(__file__).parent / "frameworks" / "train.py"
_PACKAGES = {"accelerate": "accelerate", "trainer": "transformers"}  # others need lightning
_LIMIT_S = 600.0
_WITHOUT = "without byteprophet"
SAME = "same bits"
_BOTH_TURNS = "01"
_progress = progress_of("ddp_frameworks")


@dataclass(frozen=True)
class Way:
    """Who exchanges gradients in the turn that saves a checkpoint, and in the one that loads it.

    Both are a sync, or "" for DistributedDataParallel.
    """

    saving: str
    loading: str


@dataclass(frozen=True)
class Ran:
    """What all ranks printed. ``failed``: why there is no result; "" if there is."""

    digests: frozenset[str]
    exchanged_by: frozenset[str]
    failed: str


def main(arguments: Sequence[str]) -> None:
    """Run the jobs and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--ranks", default="2", help="numbers of ranks")
    parser.add_argument("--syncs", default=",".join(OURS), help="values of BYTEPROPHET_SYNC")
    parser.add_argument("--only", default=",".join(FRAMEWORKS), help="these frameworks alone")
    parser.add_argument("--resumed", action="store_true", help="resume in a job of its own")
    given = parser.parse_args(arguments)
    names = split(given.only, "--only")
    for name in names:
        if name not in FRAMEWORKS:
            raise UserError(f"--only {name}: must be one of {', '.join(FRAMEWORKS)}")
    sizes = [_ranks(text) for text in split(given.ranks, "--ranks")]
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("framework", "ranks", "saved by", "loaded by", "parameters", "exchanged by"):
        table.add_column(column)
    bad = 0
    for name in names:
        package = _PACKAGES.get(name.partition(" ")[0], "lightning")
        if importlib.util.find_spec(package) is None:
            table.add_row(name, "", "", "", f"left out: pip install {package}", "")
            continue
        for ranks in sizes:
            for sync in split(given.syncs, "--syncs"):
                for way, said, exchanged_by in _compared(name, ranks, sync, given.resumed):
                    bad += said != SAME
                    by = [each or _WITHOUT for each in (way.saving, way.loading)]
                    _progress(f"{name}, {ranks} ranks, {', then '.join(by)}: {said}")
                    table.add_row(name, str(ranks), *by, said, ", ".join(sorted(exchanged_by)))
    Console(width=110).print(table)
    if bad:
        raise JobFailed(f"{bad} results differ from those without byteprophet")


def _ranks(text: str) -> int:
    ranks = whole_number(text)
    if ranks is None or ranks < 2:
        raise UserError(f"--ranks {text}: must be numbers from 2")
    return ranks


def _compared(
    name: str, ranks: int, sync: str, resumed: bool
) -> Iterator[tuple[Way, str, frozenset[str]]]:
    """The ways in which byteprophet takes part, what came out of each, and who exchanged there."""
    ways = [Way(sync, sync)]
    ways += [Way(sync, ""), Way("", sync)] if resumed else []
    exact = [_run(name, Way("", ""), ranks, resumed, in_rank_order=ranks > 2)]
    for way in ways:
        ran = _run(name, way, ranks, resumed, in_rank_order=ranks > 2)
        said = verdict(exact, ran)
        if said != SAME and ranks > 2 and "ours" not in ran.exchanged_by:
            # DistributedDataParallel has kept its own order of sums.
            exact.append(_run(name, Way("", ""), ranks, resumed))
            said = verdict(exact[-1:], ran)
        yield way, said, ran.exchanged_by


def _run(name: str, way: Way, ranks: int, resumed: bool, *, in_rank_order: bool = False) -> Ran:
    """Both turns, in one job or in one each. ``in_rank_order``: where byteprophet has no part."""
    digests: set[str] = set()
    exchanged_by: set[str] = set()

    def note(_role: str, line: str) -> None:
        found = re.search(r"digest (\w+) by (\w+)", line)
        if found is not None:
            digests.add(found[1])
            exchanged_by.add(found[2])

    turns = [("0", way.saving), ("1", way.loading)] if resumed else [(_BOTH_TURNS, way.loading)]
    with tempfile.TemporaryDirectory() as folder:
        for turn, sync in turns:
            order = ", sums in the order of ranks" * (in_rank_order and not sync)
            _progress(f"{name}, {ranks} ranks, turn {turn}, {sync or _WITHOUT}{order}")
            digests.clear()
            options = [IN_RANK_ORDER] if in_rank_order and not sync else []
            spec = JobSpec(
                command=(sys.executable, str(_TRAIN), name, folder, turn, *options),
                run_directory=Path(folder) / f"run-{turn}",
                workers=1,  # Lightning takes ranks of other workers for those of other nodes
                local_ranks=ranks,
                servers=0,
                environment={SYNC: sync, "BYTEPROPHET_TIMEOUT_S": "120", "HF_HUB_OFFLINE": "1"},
                timeout_s=_LIMIT_S,
            )
            failed = run_job(spec, note).failed
            if failed is not None:
                return Ran(frozenset(), frozenset(exchanged_by), failed)
    return Ran(frozenset(digests), frozenset(exchanged_by), "")


def verdict(exact: Sequence[Ran], ran: Ran) -> str:
    """What came out of ``ran``, which must end with the bits of one of ``exact``."""
    failed = [each.failed for each in (*exact, ran) if each.failed]
    if failed:
        return f"failed: {failed[0]}"
    if len(ran.digests) != 1:
        return "ranks differ" if ran.digests else "no result"
    return SAME if any(ran.digests == each.digests for each in exact) else "differ"


if __name__ == "__main__":
    run_script(main)
