"""Frameworks that wrap the model themselves, with and without BYTEPROPHET_SYNC.

    pip install accelerate transformers lightning
    python experiments/ddp_frameworks.py [--ranks 2,4] [--syncs dear-planned] [--only accelerate]

Trains small models by Accelerate, ``transformers.Trainer``, Lightning and Fabric, as
``frameworks/train.py`` says, in one job each, and prints whether the parameters are those of the
job without byteprophet: bit for bit with two ranks, up to rounding with more. Exit status 1 if not.
Half a minute per job on two cores.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from frameworks.train import FRAMEWORKS
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
_LIMIT_S = 300.0
_RELATIVE, _ABSOLUTE = 1e-2, 1e-4
_progress = progress_of("ddp_frameworks")


@dataclass(frozen=True)
class Ran:
    """What one job printed and left behind. ``failed``: why it has no result; "" if it has."""

    digests: frozenset[str]
    exchanged_by: frozenset[str]
    parameters: Sequence[Any]
    failed: str


def main(arguments: Sequence[str]) -> None:
    """Run the jobs and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--ranks", default="2", help="numbers of ranks")
    parser.add_argument("--syncs", default=",".join(OURS), help="values of BYTEPROPHET_SYNC")
    parser.add_argument("--only", default=",".join(FRAMEWORKS), help="these frameworks alone")
    given = parser.parse_args(arguments)
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("framework", "ranks", "sync", "parameters", "exchanged by"):
        table.add_column(column)
    bad = 0
    for name in split(given.only, "--only"):
        if name not in FRAMEWORKS:
            raise UserError(f"--only {name}: must be one of {', '.join(FRAMEWORKS)}")
        package = _PACKAGES.get(name.partition(" ")[0], "lightning")
        if importlib.util.find_spec(package) is None:
            table.add_row(name, "", "", f"left out: pip install {package}", "")
            continue
        for text in split(given.ranks, "--ranks"):
            ranks = whole_number(text)
            if ranks is None or ranks < 2:
                raise UserError(f"--ranks {text}: must be numbers from 2")
            plain = _run(name, "", ranks)
            for sync in split(given.syncs, "--syncs"):
                ran = _run(name, sync, ranks)
                verdict = _verdict(plain, ran, ranks)
                bad += verdict not in ("same bits", "close")
                table.add_row(name, text, sync, verdict, ", ".join(ran.exchanged_by))
    Console(width=110).print(table)
    if bad:
        raise JobFailed(f"{bad} jobs ended otherwise than without byteprophet")


def _run(name: str, sync: str, ranks: int) -> Ran:
    _progress(f"{name}, {ranks} ranks, {sync or 'without byteprophet'}")
    digests, exchanged_by = set(), set()

    def note(_role: str, line: str) -> None:
        found = re.search(r"digest (\w+) by (\w+)", line)
        if found is not None:
            digests.add(found[1])
            exchanged_by.add(found[2])

    with tempfile.TemporaryDirectory() as folder:
        spec = JobSpec(
            command=(sys.executable, str(_TRAIN), name, folder),
            run_directory=Path(folder) / "run",
            workers=1,  # Lightning takes ranks of other workers for those of other nodes
            local_ranks=ranks,
            servers=0,
            environment={SYNC: sync, "BYTEPROPHET_TIMEOUT_S": "60", "HF_HUB_OFFLINE": "1"},
            timeout_s=_LIMIT_S,
        )
        failed = run_job(spec, note).failed
        parameters = [] if failed else torch.load(Path(folder) / "rank-0.pt")
    return Ran(frozenset(digests), frozenset(exchanged_by), parameters, failed or "")


def _verdict(plain: Ran, ran: Ran, ranks: int) -> str:
    if plain.failed or ran.failed:
        return f"failed: {plain.failed or ran.failed}"
    if len(ran.digests) > 1:
        return "ranks differ"
    if ran.digests == plain.digests:
        return "same bits"
    pairs = zip(plain.parameters, ran.parameters, strict=True)
    is_close = all(
        torch.allclose(one, other, rtol=_RELATIVE, atol=_ABSOLUTE) for one, other in pairs
    )
    return "close" if ranks > 2 and is_close else "differ"


if __name__ == "__main__":
    run_script(main)
