"""Where the processor's time goes: seconds per gigabyte of both transports, beside iperf3's.

    python experiments/processor_time.py

Round after round, in turn: iperf3 (one stream between two hosts of namespaces), and a job of two
workers per runtime on such hosts, without a limit: BytePS with one server under each scheduler, our
all-reduce over the mesh (``allreduce``, ``dear-planned``), and DistributedDataParallel over gloo
(``ddp``). ``alone`` trains and exchanges nothing: what gradients and updates cost. Workers
(``processor_time_worker.py``) train a model that computes nothing else. A gigabyte is one of
payload that crosses a link once: pushes and pulls, or what a reduce-scatter and an all-gather must
send.

Printed are, as medians over the rounds:

- *s/GB*: processor seconds of all roles per gigabyte, less those of ``alone`` for the same
  iterations, by role, and over iperf3's (both ends) of the same round;
- *us/tensor*: processor microseconds per small tensor and worker, beyond what its bytes cost, from
  jobs with many tensors of 16 KiB;
- waits and preemptions (context switches) per GB;
- how many cores a worker needs at 10 to 400 Gbit/s, if its link is busy in both directions, by the
  same seconds per GB; and the rate at which this machine's cores would be busy all the time with
  the jobs of the first table, beside the rate that these jobs had;
- with ``--profile``, seconds per GB by term (``perf_terms.py``) and the threads that used most, of
  the first round's jobs with large tensors; perf takes a minute per job to read a profile;
- with ``--calls``, system calls per MB, counted by strace in a job of its own.

Processor time is nearly independent of what else the machine does; wall time is not. Writes
``processor_time.json`` to ``--out``, by default experiments/results, and refuses to overwrite one
that was measured with other options. Half a minute per job, 14 jobs per round.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import call_counts
import iperf
import perf_terms
import thread_samples
from processor_time_table import print_tables
from processor_time_worker import ALONE, DDP
from recorded import RESULTS
from results_file import earlier_results, write_results
from script import check_least, progress_of, run_script
from thread_samples import Used

from byteprophet import schedulers
from byteprophet.bench import describe_machine
from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError
from byteprophet.input_files import read_json
from byteprophet.launcher import JobSpec, make_run_directory, read_worker_results, run_job
from byteprophet.network import why_not_permitted

SCHEMA = 1
RUNTIMES = ("stock", "fifo", "prophet", "allreduce", "dear-planned", DDP)
_WORKERS = 2
_WORKER = Path(__file__).with_name("processor_time_worker.py")
_JOB_TIMEOUT_S = 400.0
_SMALL_TENSOR_BYTES = 16 << 10

Row = dict[str, Any]
_progress = progress_of("processor_time")


@dataclass(frozen=True)
class Shape:
    """The parameters of a model: so many, of so many bytes in all, and the iterations of a job."""

    name: str
    tensors: int
    size_bytes: int
    warmup: int  # until partitions have grown, and dear-planned has planned
    iterations: int

    def moved_bytes(self, runtime: str) -> int:
        """Payload that crosses links in one iteration of a job."""
        if runtime == ALONE:
            return 0
        copies = _WORKERS if runtime in schedulers.names else _WORKERS - 1
        return 2 * copies * self.size_bytes


def main(arguments: Sequence[str]) -> None:
    """Run, print, save."""
    options = _parse(arguments)
    path = options.out / "processor_time.json"
    if options.report:
        saved = read_json(path)
        print_tables(saved["results"], saved["machine"]["cores"])
        return
    runtimes = split(options.runtimes, "--runtimes")
    for name in runtimes:
        if name not in (*schedulers.names, "allreduce", "dear", "dear-planned", DDP):
            raise UserError(f"--runtimes: {name!r}: choose from {', '.join(RUNTIMES)}")
    check_least(options, rounds=1, iterations=1, megabytes=1)
    settings = _settings(options, runtimes)
    earlier_results(path, settings=settings)
    iperf.require_iperf()
    reason = why_not_permitted()
    if reason is not None:
        raise UserError(f"hosts of their own need network namespaces: {reason}")
    for option, wanted, why_not in (
        ("--profile", options.profile, perf_terms.why_not),
        ("--calls", options.calls, call_counts.why_not),
    ):
        if wanted and (reason := why_not()) is not None:
            raise UserError(f"{option}: {reason}")
    size_bytes = options.megabytes * 1_000_000
    large = Shape("large", 8, size_bytes, options.warmup, options.iterations)
    small_tensors = max(1, size_bytes // 4 // _SMALL_TENSOR_BYTES)
    small = Shape(
        "small",
        small_tensors,
        small_tensors * _SMALL_TENSOR_BYTES,
        options.warmup,
        options.iterations,
    )
    rows: list[Row] = []
    for number in range(1, options.rounds + 1):
        what = f"round {number} of {options.rounds}"
        _progress(f"{what}: iperf3")
        rows.append({"round": number, "runtime": "iperf3", **_iperf(options.seconds)})
        for shape in (large, small):
            for runtime in (ALONE, *runtimes):
                _progress(f"{what}: {runtime}, {shape.name} tensors")
                profiled = options.profile and shape is large and number == 1
                measured = _run(runtime, shape, options.runs, profiled)
                rows.append({"round": number, "runtime": runtime, **measured})
                _write(path, settings, rows)
    if options.calls:
        few = replace(large, warmup=2, iterations=4)
        for runtime in runtimes:
            _progress(f"system calls: {runtime}")
            rows.append({"round": 0, "runtime": runtime, **_count(runtime, few, options.runs)})
            _write(path, settings, rows)
    print_tables(rows, describe_machine()["cores"])
    print(f"saved: {path}")


def _settings(options: argparse.Namespace, runtimes: Sequence[str]) -> Row:
    names = ("megabytes", "rounds", "warmup", "iterations", "seconds", "profile", "calls")
    chosen = {name: getattr(options, name) for name in names}
    return {**chosen, "runtimes": runtimes, "workers": _WORKERS}


def _write(path: Path, settings: Row, rows: Sequence[Row]) -> None:
    content = {
        "schema": SCHEMA,
        "machine": describe_machine(),
        "settings": settings,
        "results": rows,
    }
    write_results(path, content)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Show where the processor's time goes, per gigabyte moved and per tensor.",
        epilog="example: python experiments/processor_time.py --runtimes fifo,prophet --rounds 1",
    )
    parser.add_argument("--runtimes", default=",".join(RUNTIMES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=20, help="iterations before measured ones")
    parser.add_argument("--iterations", type=int, default=20, help="measured ones of a job")
    parser.add_argument("--megabytes", type=int, default=128, help="of all large tensors")
    parser.add_argument("--seconds", type=float, default=3.0, help="of iperf3 in a round")
    parser.add_argument("--profile", action="store_true", help="terms and threads, by perf")
    parser.add_argument("--calls", action="store_true", help="count system calls by strace as well")
    parser.add_argument("--report", action="store_true", help="run nothing, print what there is")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory for the results")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="for run directories")
    return parser.parse_args(arguments)


def _iperf(seconds: float) -> Row:
    flow = iperf.measure(seconds)
    return {
        "shape": "stream",
        "bytes_per_s": round(flow.bytes_per_s),
        "processor_s_per_gb": round(flow.cpu_s_per_gb, 4),
    }


def _spec(runtime: str, shape: Shape, runs: Path) -> JobSpec:
    served = runtime in schedulers.names
    sizes = (shape.tensors, shape.size_bytes, shape.warmup, shape.iterations)
    return JobSpec(
        command=(sys.executable, str(_WORKER), runtime, *map(str, sizes)),
        run_directory=make_run_directory(runs, f"processor-{runtime}-{shape.name}"),
        workers=_WORKERS,
        servers=1 if served else 0,
        scheduler=runtime if served else schedulers.DEFAULT,  # of no use without servers
        namespaces=True,
        timeout_s=_JOB_TIMEOUT_S,
    )


def _run(runtime: str, shape: Shape, runs: Path, profiled: bool) -> Row:
    """One job, and what its roles used while iterations were measured."""
    spec = _spec(runtime, shape, runs)
    profile = spec.run_directory / "perf.data"
    with perf_terms.recorded(profile) if profiled else contextlib.nullcontext():
        run_job(spec, None).check()
    workers = read_worker_results(spec.run_directory)
    if len(workers) != _WORKERS:
        raise JobFailed(
            f"{runtime}: not every worker wrote a result: see {spec.run_directory}/logs"
        )
    # Rank 0 looked at all roles when it began to measure, and when it ended.
    first = next(worker for worker in workers if worker["before"])
    from_ns, until_ns = first["first_monotonic_ns"], first["last_monotonic_ns"]
    used = thread_samples.used(first["before"], first["after"])
    by_role: dict[str, float] = defaultdict(float)
    for each in used:
        by_role[_kind(each.role)] += each.processor_s
    row: Row = {
        "shape": shape.name,
        "tensors": shape.tensors,
        "iterations": shape.iterations,
        "moved_bytes": shape.moved_bytes(runtime) * shape.iterations,
        "wall_s": round((until_ns - from_ns) / 1e9, 3),
        "user_s": round(sum(each.user_s for each in used), 4),
        "system_s": round(sum(each.system_s for each in used), 4),
        "role_s": {kind: round(seconds, 4) for kind, seconds in sorted(by_role.items())},
        "waits": round(sum(each.waits for each in used)),
        "preempted": round(sum(each.preempted for each in used)),
        "run": spec.run_directory.name,
    }
    if profiled:
        samples = perf_terms.samples_in(profile, {each.pid for each in used})
        terms = perf_terms.shares(samples, from_ns, until_ns)
        row["samples"] = {term: terms[term] for term in perf_terms.TERMS if terms[term]}
        row["threads"] = _threads(used, workers, samples, from_ns, until_ns)
        profile.unlink()  # some hundred megabytes
    return row


def _threads(
    used: Sequence[Used],
    workers: Sequence[Mapping[str, Any]],
    samples: Sequence[perf_terms.Sample],
    from_ns: int,
    until_ns: int,
) -> list[Row]:
    """Each kind of thread, the one that used most first.

    A thread is called as Python or the kernel calls it; one that nobody has named has the process'
    name, and is called after the function in which it was seen most often.
    """
    of_python = {int(tid): name for worker in workers for tid, name in worker["threads"].items()}
    common = {each.pid: each.name for each in used if each.tid == each.pid}
    seen: dict[int, Counter[str]] = defaultdict(Counter)
    for sample in samples:
        function, file = sample.frames[0]
        if from_ns <= sample.time_ns < until_ns and not file.startswith("["):
            seen[sample.tid][function.partition("(")[0]] += 1
    found: dict[tuple[str, str], Row] = {}
    for each in used:
        name = of_python.get(each.tid, each.name)
        if each.tid == each.pid:
            name = "MainThread"
        elif each.tid not in of_python and each.name == common.get(each.pid):
            most = seen[each.tid].most_common(1)
            name = f"in {most[0][0]}" if most else "unnamed"
        row = found.setdefault(
            (_kind(each.role), name),
            {"role": _kind(each.role), "thread": name, "user_s": 0.0, "system_s": 0.0, "waits": 0},
        )
        row["user_s"] = round(row["user_s"] + each.user_s, 4)
        row["system_s"] = round(row["system_s"] + each.system_s, 4)
        row["waits"] += round(each.waits)
    return sorted(found.values(), key=lambda row: -row["user_s"] - row["system_s"])


def _count(runtime: str, shape: Shape, runs: Path) -> Row:
    """The system calls of all roles, in all iterations of a job that strace slows down."""
    spec = _spec(runtime, shape, runs)
    counter = call_counts.CallCounter(spec.run_directory)
    try:
        run_job(spec, None).check()
    finally:
        calls = counter.stop()
    moved_bytes = shape.moved_bytes(runtime) * (shape.warmup + shape.iterations)
    return {"shape": "calls", "moved_bytes": moved_bytes, "calls": dict(calls)}


def _kind(role: str) -> str:
    return role.partition("-")[0]


if __name__ == "__main__":
    run_script(main)
