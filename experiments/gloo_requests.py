"""Whether gloo asks for a message behind what it sends to the same rank.

    python experiments/gloo_requests.py

Two ranks on limited links send each other a large tensor. Rank 1 asks for rank 0's at once, so that
travels first. Rank 0 asks for rank 1's before it sends its own, just after, or while it is on its
way. Links carry both directions at once. So if requests went at once, all would take the time of
one tensor. If requests wait in line, the last two take twice as long (``requests_in_line`` in
docs/simulator-accuracy.md). Printed is when rank 0 had its message, over the time of one tensor
alone.

Then the two ranks gather such tensors. gloo's all-gather sends each half before it asks for the
other rank's. So the rank that begins last sends its first half at once, if it was asked for it, and
its own request waits behind. Printed is how long the all-gather takes on that rank. If both begin
together, chance decides. Takes half a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from script import run_script

from byteprophet.errors import UserError
from byteprophet.input_files import read_json
from byteprophet.launcher import JobSpec, make_run_directory, run_job
from byteprophet.network import why_not_permitted
from byteprophet.whole_files import write_whole

ALONE, BEFORE, AFTER, MEANWHILE = "alone", "before sending", "after sending", "while it sends"
GATHERED_LATE, GATHERED = "begins after rank 1", "begins with rank 1"
_WAYS = ALONE, BEFORE, AFTER, MEANWHILE
_GATHERS = GATHERED_LATE, GATHERED
_RATE_BPS = 200_000_000
_ELEMENTS = 1 << 21
_REPEATED = 5
_AT_ONCE, _IN_LINE = 1.25, 1.75
"""Below the first, requests do not wait; above the second, they do."""


def main(arguments: Sequence[str]) -> None:
    """Run the job and print a line per way. With an argument of its own: be one of its workers."""
    parser = argparse.ArgumentParser(
        description="See whether gloo's requests for messages wait behind messages.",
        epilog="example: python experiments/gloo_requests.py --runs /tmp/runs",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="for run directories")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work(Path(os.environ["BYTEPROPHET_RUN"]))
        return
    reason = why_not_permitted()
    if reason is not None:
        raise UserError(f"limited links need network namespaces: {reason}")
    directory = make_run_directory(options.runs, "gloo-requests")
    spec = JobSpec(
        command=(sys.executable, __file__, "--worker"),
        run_directory=directory,
        workers=2,
        servers=0,
        namespaces=True,
        bandwidth_bps=_RATE_BPS,
        timeout_s=120.0,
    )
    run_job(spec).check()
    times_s = read_json(directory / "times.json")
    alone_s = median(times_s[ALONE])
    for way in _WAYS[1:]:
        ratios = sorted(time_s / alone_s for time_s in times_s[way])
        middle = median(ratios)
        says = "waits" if middle > _IN_LINE else "does not wait" if middle < _AT_ONCE else "unclear"
        print(
            f"rank 0 asks {way}: its message comes after {middle:.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}) of the time of one: the request {says}"
        )
    for way in _GATHERS:
        each = ", ".join(f"{time_s / alone_s:.2f}" for time_s in sorted(times_s[way]))
        print(f"rank 0 {way}: its all-gather takes {each} of the time of one")


def work(directory: Path) -> None:
    """Exchange messages in all ways; rank 0 writes down when its own came."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    times_s: dict[str, list[float]] = {way: [] for way in (*_WAYS, *_GATHERS)}
    for _ in range(1 + _REPEATED):
        for way in _WAYS:
            times_s[way].append(exchange(way))
        for way in _GATHERS:
            times_s[way].append(gather(way))
    if dist.get_rank() == 0:
        kept = {way: each[1:] for way, each in times_s.items()}  # the first one opens connections
        write_whole(directory / "times.json", json.dumps(kept))


def exchange(way: str) -> float:
    """Seconds until this rank has its message."""
    other = 1 - dist.get_rank()
    mine, theirs = torch.ones(_ELEMENTS), torch.empty(_ELEMENTS)
    works: list[Any] = []
    dist.barrier()
    begun_s = time.monotonic()
    if dist.get_rank() == 1:
        sends = [] if way == ALONE else [dist.irecv(theirs, other)]
        works = [*sends, dist.isend(mine, other)]
    elif way == ALONE:
        works = [dist.irecv(theirs, other)]
    elif way == BEFORE:
        works = [dist.irecv(theirs, other), dist.isend(mine, other)]
    else:
        time.sleep(0.05)  # rank 1 has asked
        sent = dist.isend(mine, other)
        if way == MEANWHILE:
            time.sleep(0.1)
        works = [dist.irecv(theirs, other), sent]
    works[0].wait()
    took_s = time.monotonic() - begun_s
    for each in works[1:]:
        each.wait()
    return took_s


def gather(way: str) -> float:
    """Seconds that an all-gather takes on this rank."""
    mine, all_of_them = torch.ones(_ELEMENTS), torch.empty(2 * _ELEMENTS)
    dist.barrier()
    if way == GATHERED_LATE and dist.get_rank() == 0:
        time.sleep(0.05)  # rank 1 has asked
    begun_s = time.monotonic()
    dist.all_gather_single(all_of_them, mine)
    return time.monotonic() - begun_s


if __name__ == "__main__":
    run_script(main)
