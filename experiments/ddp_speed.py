"""How fast unmodified scripts of DistributedDataParallel become by BYTEPROPHET_SYNC.

    python experiments/ddp_speed.py

One script (``models/train.py``) trains a real or a paced model on hosts with limited links: as it
is, under values of BYTEPROPHET_SYNC, and, as "optimizer", with ``DistributedOptimizer(sync="dear-
planned")`` in place of DistributedDataParallel, which a user would have to write. The ratio r is
the time of an all-reduce of all gradients over the compute; 0 stands for links without a limit. All
jobs of a cell run in turn, round after round, with the same number of iterations, so that with two
ranks all end with the same bits. The first 60 iterations are not counted: ``auto`` tries both
exchanges in them.

Printed per cell: the median iteration of each way, and how many times as fast as the script itself
it is, as the median of the rounds, with the lowest and the highest; and what ``auto`` has chosen.

Writes ``ddp_speed.json`` to ``--out``, and goes on where it stopped. A job takes half a minute to a
minute: with the defaults, four cells of a model take an hour on two quiet cores. To see whether it
works: ``--models resnet --ratios 1 --rounds 1 --iterations 4``, which takes three minutes of
processor time.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from gains_cell import computed
from gains_cells import DDP, TRAIN, Cell
from recorded import add_places
from rows import Row, Rows
from script import progress_of, run_script

from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError
from byteprophet.job.strategy import AUTO, DEAR_PLANNED, OURS
from byteprophet.launcher import JobSpec, make_run_directory, run_job
from byteprophet.runtime_settings import SYNC

_UNCOUNTED = 60
_TIMEOUT_S = 900.0
_OPTIMIZER = "optimizer"
_WAYS = (DDP, *OURS, AUTO, _OPTIMIZER)
_progress = progress_of("ddp_speed")


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print, save."""
    options = _parse(arguments)
    ways = split(options.ways, "--ways")
    for way in ways:
        if way not in _WAYS:
            raise UserError(f"--ways {way}: must be one of {', '.join(_WAYS)}")
    if DDP not in ways:
        raise UserError(f"--ways {options.ways}: needs {DDP}, with which the others are compared")
    try:
        ratios = [float(text) for text in split(options.ratios, "--ratios")]
    except ValueError:
        raise UserError(f"--ratios {options.ratios}: must be numbers") from None
    if any(not 0 <= ratio < 100 for ratio in ratios):
        raise UserError(f"--ratios {options.ratios}: must be 0 (no limit) to 100")
    cells = [
        {"model": model, "ratio": ratio}
        for model in split(options.models, "--models")
        for ratio in ratios
    ]
    names = ("ranks", "iterations", "rounds")
    settings = {**{name: getattr(options, name) for name in names}, "ways": ways}
    kinds = {str(cell["model"]).startswith("paced-") for cell in cells}
    paced = kinds.pop() if len(kinds) == 1 else None
    rows = Rows(options.out / "ddp_speed.json", settings, paced)
    found = rows.complete(cells, _label, lambda cell: measure(cell, options, ways))
    print(f"{options.ranks} ranks, {options.rounds} round(s) of {options.iterations} iterations")
    for row in found:
        print("\n".join(lines_of(row)))
    if not all(row["equal_results"] for row in found):
        raise JobFailed("parameters differ between ways")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare unmodified scripts with and without BYTEPROPHET_SYNC.",
        epilog="example: python experiments/ddp_speed.py --models resnet --ratios 1 --rounds 1",
    )
    parser.add_argument("--models", default="resnet,gpt", help="also paced-resnet18, ...")
    parser.add_argument("--ratios", default="0.5,1,1.5,0", help="all-reduce / compute; 0: no limit")
    parser.add_argument("--ways", default=f"{DDP},{DEAR_PLANNED},{AUTO},{_OPTIMIZER}")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=20, help="measured ones of each job")
    parser.add_argument("--rounds", type=int, default=3)
    add_places(parser)
    return parser.parse_args(arguments)


def measure(cell: Row, options: argparse.Namespace, ways: Sequence[str]) -> Row:
    """Run all ways in turn; each one's median iteration in each round."""
    limited = Cell(cell["model"], DDP, options.ranks, cell["ratio"] or 1.0)
    bandwidth_bps = None
    if cell["ratio"]:
        size_bytes, compute_ns = computed(limited, options.runs / "ddp_speed", 30, _progress)
        bandwidth_bps = limited.bandwidth_bps(size_bytes, compute_ns)
    rounds_ms: dict[str, list[float]] = {way: [] for way in ways}
    digests, chosen = set(), []
    for number in range(1, options.rounds + 1):
        for way in ways:
            _progress(f"{_label(cell)}, round {number} of {options.rounds}: {way}")
            digest, median_ms, said = run(cell["model"], way, bandwidth_bps, options)
            digests.add(digest)
            rounds_ms[way].append(median_ms)
            chosen += [said] if way == AUTO else []
    return {
        "bandwidth_bps": bandwidth_bps,
        "rounds_ms": rounds_ms,
        "chosen": chosen,
        "equal_results": len(digests) == 1 or options.ranks > 2,
    }


def run(
    model: str, way: str, bandwidth_bps: int | None, options: argparse.Namespace
) -> tuple[str, float, str]:
    """One job: the digest of its parameters, its median iteration in ms, and what ``auto`` says."""
    sync = DEAR_PLANNED if way == _OPTIMIZER else DDP
    command = [sys.executable, str(TRAIN), "--model", model, "--sync", sync]
    command += ["--iterations", str(_UNCOUNTED + options.iterations)]
    command += ["--measured", str(options.iterations)]
    lines: list[str] = []
    spec = JobSpec(
        command=tuple(command),
        run_directory=make_run_directory(options.runs / "ddp_speed", f"{model}-{way}"),
        workers=options.ranks,
        servers=0,
        bandwidth_bps=bandwidth_bps,
        environment={SYNC: "" if way in (DDP, _OPTIMIZER) else way},
        namespaces=True,
        timeout_s=_TIMEOUT_S,
    )
    run_job(spec, lambda _role, line: lines.append(line)).check()
    said = [line for line in lines if "an iteration takes" in line]
    for line in lines:
        found = re.match(r"digest (\w+), median iteration ([\d.]+) ms", line)
        if found is not None:
            return found[1], float(found[2]), said[0] if said else ""
    raise JobFailed(f"{_label({'model': model, 'ratio': 0})}: the script printed no time")


def gains(row: Row, way: str) -> list[float]:
    """Per round: the time of the script itself over that of ``way``."""
    rounds_ms: Mapping[str, Sequence[float]] = row["rounds_ms"]
    return [own / its for own, its in zip(rounds_ms[DDP], rounds_ms[way], strict=True)]


def lines_of(row: Row) -> list[str]:
    """A cell for people."""
    rate = row["bandwidth_bps"]
    lines = [f"{_label(row)} ({f'{rate / 1e6:.0f} Mbit/s' if rate else 'links without a limit'})"]
    for way, rounds_ms in row["rounds_ms"].items():
        of_rounds = gains(row, way)
        lines.append(
            f"  {way:<13} {median(rounds_ms):8.1f} ms, {median(of_rounds):.3f} times as fast "
            f"({min(of_rounds):.3f} to {max(of_rounds):.3f})"
        )
    lines += [f"  auto: {said.removeprefix('byteprophet: ')}" for said in row["chosen"]]
    if not row["equal_results"]:
        lines.append("  PARAMETERS DIFFER")
    return lines


def _label(row: Row | dict[str, Any]) -> str:
    return f"{row['model']}, r = {row['ratio']:g}" if row["ratio"] else f"{row['model']}, no limit"


if __name__ == "__main__":
    run_script(main)
