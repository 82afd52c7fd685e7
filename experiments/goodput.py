"""Goodput without a limit: push and pull, and reduce-scatter, against iperf3 on such veth pairs.

    python experiments/goodput.py

Round after round, in turn: iperf3, one stream between two hosts of namespaces, and a job of two
workers and a server on such hosts per scheduler, which pushes and pulls large tensors and does
nothing else (goodput_worker.py). Goodput counts the payload that all workers push and pull; its
ratio is to the mean of the streams before and after the job. ``reduce-scatter`` is a job of two
workers without servers, which reduce-scatter one large tensor over the mesh, and has no
communication besides. Its one connection carries bytes in both directions, so it is compared with
two streams of iperf3, one in each direction at the same time. CPU seconds per gigabyte are those of
all workers, and of the server, while iterations are measured. Both ends of everything share this
machine's cores: only what ran in one round can be compared.

With ``--perf``, each job of the last round is sampled by ``perf record`` where that is installed.
Writes ``goodput.json`` to experiments/results.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import iperf
import numpy as np
from goodput_worker import REDUCE_SCATTER
from recorded import RESULTS
from results_file import write_results
from rich import box
from rich.console import Console
from rich.table import Table
from role_cpu import CpuSampler
from script import progress_of, run_script

from byteprophet import schedulers
from byteprophet.bench import describe_machine
from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError
from byteprophet.launcher import JobSpec, make_run_directory, read_worker_results, run_job
from byteprophet.network import why_not_permitted

SCHEMA = 2
_WORKERS = 2
_WORKER = Path(__file__).with_name("goodput_worker.py")
_JOB_TIMEOUT_S = 300.0
_WARMUP_ITERATIONS = 20  # until partitions have grown

Row = Mapping[str, Any]
_progress = progress_of("goodput")


def main(arguments: Sequence[str]) -> None:
    """Run, print, save."""
    options = _parse(arguments)
    names = split(options.runtimes, "--runtimes")
    for name in names:
        if name != REDUCE_SCATTER:
            schedulers.resolve(name, {})
    if options.rounds < 1 or options.iterations < 1 or options.megabytes < 1:
        raise UserError("--rounds, --iterations and --megabytes must be at least 1")
    iperf.require_iperf()
    reason = why_not_permitted()
    if reason is not None:
        raise UserError(f"hosts of their own need network namespaces: {reason}")
    rows: list[Row] = []
    for number in range(1, options.rounds + 1):
        what = f"round {number} of {options.rounds}"
        flows: dict[bool, iperf.Flow] = {}
        for name in names:
            both_ways = name == REDUCE_SCATTER
            before = flows.get(both_ways) or _iperf(what, number, options, both_ways, rows)
            _progress(f"{what}: {name}")
            row = _run(name, options, profiled=options.perf and number == options.rounds)
            after = flows[both_ways] = _iperf(what, number, options, both_ways, rows)
            around = (before.bytes_per_s + after.bytes_per_s) / 2
            ratio = row["goodput_bytes_per_s"] / around
            rows.append({"round": number, **row, "iperf3_ratio": round(ratio, 4)})
    _print(rows)
    content = {"schema": SCHEMA, "machine": describe_machine(), "results": rows}
    path = options.out / "goodput.json"
    write_results(path, content)
    print(f"saved: {path}")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare the goodput of a job without a limit with iperf3's.",
        epilog="example: python experiments/goodput.py --runtimes stock,prophet --rounds 5",
    )
    parser.add_argument(
        "--runtimes",
        default=f"stock,fifo,prophet,{REDUCE_SCATTER}",
        help=f"schedulers, and {REDUCE_SCATTER}",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=40, help="measured ones of a job")
    parser.add_argument("--megabytes", type=int, default=128, help="of all tensors")
    parser.add_argument("--partition-bytes", type=int, help="default: each scheduler's own")
    parser.add_argument("--seconds", type=float, default=3.0, help="of iperf3 in a round")
    parser.add_argument("--perf", action="store_true", help="profile the last round's jobs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory for the results")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="for run directories")
    return parser.parse_args(arguments)


def _iperf(
    what: str, number: int, options: argparse.Namespace, both_ways: bool, rows: list[Row]
) -> iperf.Flow:
    name = "iperf3, both ways" if both_ways else "iperf3"
    _progress(f"{what}: {name}")
    flow = iperf.measure(options.seconds, both_ways=both_ways)
    rows.append(
        {
            "round": number,
            "runtime": name,
            "goodput_bytes_per_s": round(flow.bytes_per_s),
            "cpu_s_per_gb": {"both ends": round(flow.cpu_s_per_gb, 3)},
        }
    )
    return flow


def _run(runtime: str, options: argparse.Namespace, profiled: bool) -> Row:
    directory = make_run_directory(options.runs, f"goodput-{runtime}")
    size_bytes = options.megabytes * 1_000_000
    served = runtime != REDUCE_SCATTER
    lengths = [str(number) for number in (size_bytes, _WARMUP_ITERATIONS, options.iterations)]
    spec = JobSpec(
        command=(sys.executable, str(_WORKER), runtime, *lengths),
        run_directory=directory,
        workers=_WORKERS,
        servers=1 if served else 0,
        scheduler=runtime if served else schedulers.DEFAULT,  # of no use without servers
        partition_bytes=options.partition_bytes if served else None,
        namespaces=True,
        timeout_s=_JOB_TIMEOUT_S,
    )
    sampler = CpuSampler(directory)
    try:
        with _perf(directory, profiled):
            run_job(spec).check()
    finally:
        sampler.stop()
    workers = read_worker_results(directory)
    if len(workers) != _WORKERS:
        raise JobFailed(f"{runtime}: not every worker wrote a result: see {directory}/logs")
    slowest_ns = np.max([worker["iteration_ns"] for worker in workers], axis=0)
    per_iteration = (2 * _WORKERS if served else _WORKERS - 1) * size_bytes
    from_ns = min(worker["first_monotonic_ns"] for worker in workers)
    until_ns = max(worker["last_monotonic_ns"] for worker in workers)
    gigabytes = per_iteration * len(slowest_ns) / 1e9
    partition_bytes = max(worker["partition_bytes"] for worker in workers)
    if served and not partition_bytes:
        _, partition_bytes = schedulers.resolve(runtime, {}, options.partition_bytes)
    return {
        "runtime": runtime,
        "partition_bytes": partition_bytes,
        "goodput_bytes_per_s": round(per_iteration / median(slowest_ns.tolist()) * 1e9),
        "cpu_s_per_gb": {
            kind: round(sampler.cpu_s(kind, from_ns, until_ns) / gigabytes, 3)
            for kind in (("worker", "server") if served else ("worker",))
        },
        "run": directory.name,
    }


@contextlib.contextmanager
def _perf(directory: Path, wanted: bool) -> Iterator[None]:
    """Samples the whole machine meanwhile, if ``wanted`` and possible."""
    program = shutil.which("perf") if wanted else None
    if program is None:
        if wanted:
            _progress("perf is not installed: no profile")
        yield
        return
    path = directory / "perf.data"
    command = [program, "record", "-a", "-g", "-F", "499", "-o", str(path), "--", "sleep", "3600"]
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=False,
    ) as recording:
        try:
            yield
        finally:
            recording.terminate()
    _progress(f"perf report -i {path}" if path.exists() else "perf recorded nothing")


def _print(rows: Sequence[Row]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("what")
    for name in ("GB/s", "of iperf3", "worst-best", "worker s/GB", "server s/GB"):
        table.add_column(name, justify="right")
    for name in dict.fromkeys(row["runtime"] for row in rows):
        chosen = [row for row in rows if row["runtime"] == name]
        ratios = [row["iperf3_ratio"] for row in chosen if "iperf3_ratio" in row]
        cpu = [row["cpu_s_per_gb"] for row in chosen]
        kinds = ("worker", "server") if ratios else ("both ends",)
        table.add_row(
            name,
            f"{median(row['goodput_bytes_per_s'] for row in chosen) / 1e9:.2f}",
            f"{median(ratios):.2f}" if ratios else "",
            f"{min(ratios):.2f}-{max(ratios):.2f}" if ratios else "",
            *(f"{median(used.get(kind, 0.0) for used in cpu):.2f}" for kind in kinds),
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    run_script(main)
