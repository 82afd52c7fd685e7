"""Processor time of messages beside their bytes: gloo's, and the kernel's in soft interrupts.

    python experiments/message_costs.py

- *gloo*: ranks all-reduce small buckets on loopback, several at a time. All threads but the one
  that submits them are counted (``/proc/self/task/TID/schedstat``). Printed are microseconds per
  message: a rank sends ``2 (ranks - 1)`` of them per bucket.
- *soft interrupts*: one stream of iperf3 between two hosts of namespaces, on a limited link and on
  one without a limit. perf traces soft interrupts of the network meanwhile. Printed are their ns
  per byte, less what they take without the stream: within iperf3's threads, whose time has them,
  and within all others and on idle cores. Needs root, perf and iperf3; left out without.

``measure/processor_file.py`` has constants from this. A minute.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import iperf
import torch
from script import check_least, numbers, run_script
from torch import distributed, multiprocessing

from byteprophet.network import Cluster, HostSpec, why_not_permitted
from byteprophet.network.rate import parse_rate

_BUCKETS, _ITERATIONS, _WARMUP = 16, 30, 5
_SECONDS = 3.0
_MOST_RANKS = 64  # processes of this machine
_LINE = re.compile(r"^\s*(\S.*?)\s+\d+\s+\[(\d+)\]\s+([\d.]+):\s+irq:softirq_(\w+):.*action=(\w+)")


def main(arguments: Sequence[str]) -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description="Show what messages cost beside their bytes.",
        epilog="example: python experiments/message_costs.py --ranks 2,3,4",
    )
    parser.add_argument("--ranks", default="2,3", help="numbers of gloo's ranks, by commas")
    parser.add_argument("--bucket-bytes", type=int, default=4096)
    parser.add_argument("--rate", default="1gbit", help="of the limited link")
    options = parser.parse_args(arguments)
    every = numbers(options.ranks, "--ranks", int, 2, _MOST_RANKS)
    check_least(options, bucket_bytes=4)
    rate_bps = parse_rate(options.rate, "--rate")
    for ranks in every:
        with tempfile.NamedTemporaryFile("r") as found:
            given = (ranks, _free_port(), options.bucket_bytes, found.name)
            multiprocessing.spawn(_all_reduce, given, nprocs=ranks)  # type: ignore[attr-defined,no-untyped-call]
            print(f"gloo, {ranks} ranks: {found.read()} us per message", flush=True)
    missing = [each for each in ("perf", "iperf3") if shutil.which(each) is None]
    reason = why_not_permitted() or (f"{missing[0]} is not installed" if missing else None)
    if reason is not None:
        print(f"soft interrupts are left out: {reason}", file=sys.stderr)
        return
    for name, limit_bps in ((options.rate, rate_bps), ("no limit", None)):
        own, others = _soft_ns_per_byte(limit_bps)
        print(f"soft interrupts, {name}: {own:.2f} ns per byte in iperf3, {others:.2f} elsewhere")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _all_reduce(rank: int, ranks: int, port: int, bucket_bytes: int, result: str) -> None:
    """A rank. The first one writes microseconds per message into the file ``result``."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    buckets = [torch.ones(bucket_bytes // 4) for _ in range(_BUCKETS)]
    used_ns: Counter[int] = Counter()
    for iteration in range(_WARMUP + _ITERATIONS):
        if iteration == _WARMUP:
            used_ns.subtract(_others_ns())
        works = [distributed.all_reduce(bucket, async_op=True) for bucket in buckets]
        for work in works:
            work.wait()
    used_ns.update(_others_ns())
    messages = _ITERATIONS * _BUCKETS * 2 * (ranks - 1)
    if rank == 0:
        Path(result).write_text(f"{used_ns.total() / messages / 1000:.0f}")
    distributed.destroy_process_group()


def _others_ns() -> dict[int, int]:
    """The processor time of all threads but this one, by thread."""
    own = threading.get_native_id()
    tids = [int(each.name) for each in Path("/proc/self/task").iterdir()]
    paths = {tid: Path(f"/proc/self/task/{tid}/schedstat") for tid in tids if tid != own}
    return {tid: int(path.read_text().split()[0]) for tid, path in paths.items()}


@dataclass
class _Soft:
    """Seconds of the network's soft interrupts within iperf3 and elsewhere, and of their record."""

    own_s: float = 0.0
    others_s: float = 0.0
    lasted_s: float = 0.0


@contextmanager
def _traced() -> Iterator[_Soft]:
    """Trace meanwhile. The result is there behind the ``with``."""
    found = _Soft()
    with tempfile.TemporaryDirectory() as directory:
        data = str(Path(directory, "perf.data"))
        record = "perf record -q -a -e irq:softirq_entry,irq:softirq_exit -o"
        command = f'mount -t tracefs none /sys/kernel/tracing; exec {record} "$0" -- sleep 60'
        tracing = ["unshare", "--mount", "sh", "-c", command, data]
        with subprocess.Popen(tracing, stderr=subprocess.DEVNULL) as perf:
            time.sleep(1.0)  # until it records
            began_s = time.monotonic()
            try:
                yield found
            finally:
                found.lasted_s = time.monotonic() - began_s
                perf.send_signal(signal.SIGINT)
                perf.wait(timeout=30)
        fields = ["perf", "script", "-i", data, "-F", "comm,pid,cpu,time,event,trace"]
        said = subprocess.run(fields, capture_output=True, text=True, check=True, timeout=60).stdout
    entered_s: dict[tuple[str, str], float] = {}
    for match in filter(None, map(_LINE.match, said.splitlines())):
        thread, core, time_s, event, action = match.groups()
        if event == "entry":
            entered_s[core, action] = float(time_s)
        elif action.startswith("NET_") and (core, action) in entered_s:
            took_s = float(time_s) - entered_s.pop((core, action))
            if "iperf" in thread:
                found.own_s += took_s
            else:
                found.others_s += took_s


def _soft_ns_per_byte(rate_bps: int | None) -> tuple[float, float]:
    """What soft interrupts of the network take, within iperf3 and elsewhere."""
    with _traced() as without:
        time.sleep(_SECONDS)
    hosts = [HostSpec("server", rate_bps), HostSpec("worker", rate_bps)]
    with _traced() as during:
        flow = iperf.measure(_SECONDS, Cluster(hosts))
    usual_s = without.others_s * during.lasted_s / without.lasted_s
    moved_bytes = flow.bytes_per_s * _SECONDS
    return 1e9 * during.own_s / moved_bytes, 1e9 * (during.others_s - usual_s) / moved_bytes


if __name__ == "__main__":
    run_script(main)
