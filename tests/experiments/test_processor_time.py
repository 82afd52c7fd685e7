"""The processor's time: terms of profiles, counters of threads, arithmetic of the tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import call_counts
import perf_terms
import processor_time
import processor_time_table as table
import pytest
import thread_samples

from byteprophet.errors import UserError

# What ``perf script --ns -F comm,pid,tid,time,ip,sym,dso`` prints.
PROFILE = """\
python  4711/4713  100.000000500:
    ffffffff8105 rep_movs_alternative ([kernel.kallsyms])
    ffffffff8106 _copy_from_iter ([kernel.kallsyms])
    ffffffff8107 tcp_sendmsg_locked ([kernel.kallsyms])
    ffffffff8108 __sys_sendto ([kernel.kallsyms])
          7f0001 __send (/usr/lib/x86_64-linux-gnu/libc.so.6)

mesh receive  4711/4714  100.000001000:
    ffffffff8105 tcp_rcv_established ([kernel.kallsyms])
    ffffffff8106 handle_softirqs ([kernel.kallsyms])
    ffffffff8108 __sys_sendto ([kernel.kallsyms])

python  4712/4712  100.000002000:
          5f0001 _PyEval_EvalFrameDefault (/usr/bin/python3.11)

python  4712/4712  100.000900000:            5f0001 _PyEval_EvalFrameDefault (/usr/bin/python3.11)
python  4712/4712  100.000950000:            5f0001 _PyEval_EvalFrameDefault (/usr/bin/python3.11)
"""


def test_samples_of_a_profile() -> None:
    samples = list(perf_terms.parse(PROFILE.splitlines()))
    assert [(each.pid, each.tid) for each in samples] == [
        (4711, 4713), (4711, 4714), (4712, 4712), (4712, 4712), (4712, 4712),
    ]  # fmt: skip
    assert samples[0].time_ns == 100_000_000_500
    assert samples[0].frames[-1] == ("__send", "/usr/lib/x86_64-linux-gnu/libc.so.6")
    counted = perf_terms.shares(samples, 100_000_000_000, 100_000_500_000)
    assert counted == {
        perf_terms.SEND_COPY: 1,
        perf_terms.SOFT_INTERRUPT: 1,
        perf_terms.PYTHON: 1,
    }
    assert not perf_terms.shares(samples, 0, 100_000_000_000)


@pytest.mark.parametrize(
    ("function", "file", "term"),
    [
        ("__memmove_avx512_unaligned_erms", "/lib/libc.so.6", perf_terms.COPIES),
        ("byteps::common::CpuReducer::sum(void*)", "/x/byteps/torch/c_lib.so", perf_terms.SUMS),
        ("zmq::stream_engine_t::in_event()", "/x/byteps/torch/c_lib.so", perf_terms.ZEROMQ),
        ("ps::Van::Send(ps::Message&)", "/x/byteps/torch/c_lib.so", perf_terms.BYTEPS),
        ("void byteprophet::exchange::(anonymous namespace)::SumAs<float>()",
         "/x/byteprophet/_core.cpython-311-x86_64-linux-gnu.so", perf_terms.SUMS),
        ("byteprophet::exchange::Inbox::Run()",
         "/x/byteprophet/_core.cpython-311-x86_64-linux-gnu.so", perf_terms.MESH),
        ("byteprophet::PushGate::Offer()",
         "/x/byteprophet/native/libbyteprophet_torch.so", perf_terms.PLUGIN),
        ("at::native::add_kernel", "/x/torch/lib/libtorch_cpu.so", perf_terms.TORCH),
        ("malloc", "/lib/libc.so.6", perf_terms.LIBRARIES),
    ],
)  # fmt: skip
def test_terms_of_functions(function: str, file: str, term: str) -> None:
    assert perf_terms.term_of(((function, file),)) == term


def test_counts_of_calls() -> None:
    text = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.100000          10      1000           sendmsg
 30.00    0.050000          50       200        20 recvfrom
  5.00    0.010000          10       300         1 futex
  5.00    0.010000          10        70           getpid
------ ----------- ----------- --------- --------- ----------------
100.00    0.170000          10      1570        21 total
"""
    assert call_counts.parse(text) == {"send": 1000, "receive": 200, "locks": 300}


def test_a_look_at_a_thread_that_computes() -> None:
    path = Path(f"/proc/self/task/{threading.get_native_id()}")
    _, before = thread_samples.look(path)
    began_ns = time.thread_time_ns()
    while time.thread_time_ns() - began_ns < 50_000_000:
        pass
    _, after = thread_samples.look(path)
    assert after[0] - before[0] >= 50_000_000


def test_threads_of_a_role(tmp_path: Path) -> None:
    """A process with one thread that computes and one that sleeps, marked as a role of the run."""
    environment = {
        **os.environ,
        "BYTEPROPHET_ROLE": "worker-0",
        "BYTEPROPHET_RUN": str(tmp_path.absolute()),
    }
    program = (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "while True: pass"
    )
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as process:
        before = []
        while len(before) < 2:  # it starts its thread
            time.sleep(0.05)
            before = thread_samples.snapshot(str(tmp_path.absolute()))
        from_ns = time.monotonic_ns()
        time.sleep(0.5)
        after = thread_samples.snapshot(str(tmp_path.absolute()))
        until_ns = time.monotonic_ns()
        process.kill()
    computing, sleeping = sorted(
        thread_samples.used(before, after), key=lambda each: -each.processor_s
    )
    assert computing.role == sleeping.role == "worker-0"
    assert computing.tid == computing.pid == process.pid
    assert 0 < computing.processor_s <= (until_ns - from_ns) / 1e9 + 0.3
    assert sleeping.processor_s < computing.processor_s


def job(runtime: str, shape: str, used_s: float, moved_bytes: int, tensors: int) -> dict[str, Any]:
    return {
        "round": 1,
        "runtime": runtime,
        "shape": shape,
        "tensors": tensors,
        "iterations": 10,
        "moved_bytes": moved_bytes,
        "user_s": used_s / 4,
        "system_s": used_s * 3 / 4,
        "samples": {perf_terms.SEND: 3, perf_terms.SUMS: 1},
    }


def test_what_training_alone_costs_is_left_out() -> None:
    rows = [
        {"round": 1, "runtime": "iperf3", "shape": "stream", "processor_s_per_gb": 0.5},
        job("alone", "large", 1.0, 0, 8),
        job("alone", "small", 0.5, 0, 1000),
        job("fifo", "large", 5.0, 2_000_000_000, 8),
        job("fifo", "small", 2.5, 500_000_000, 1000),
    ]
    large, small = rows[3], rows[4]
    assert table.per_gb(rows, large, table.used_s) == pytest.approx(2.0)  # (5 - 1) / 2 GB
    assert table.ratio(rows, large) == pytest.approx(4.0)
    # 2.5 - 0.5 - 2.0 s/GB * 0.5 GB = 1 s, of 1000 tensors on 2 workers in 10 iterations
    assert table.tensor_us(rows, small) == pytest.approx(50.0)
    assert table.term_s(rows, large, perf_terms.SEND) == pytest.approx(1.5)
    assert table.term_s(rows, large, perf_terms.PYTHON) == 0


def test_cores_that_links_need() -> None:
    stream = {"round": 1, "runtime": "iperf3", "shape": "stream", "processor_s_per_gb": 0.5}
    roles = {"fifo": {"worker": 3.0, "server": 2.0}, "allreduce": {"worker": 5.0}}
    jobs = {
        name: {**job(name, "large", 5.0, 2_000_000_000, 8), "role_s": role_s, "wall_s": 4.0}
        for name, role_s in roles.items()
    }
    rows = [stream, *jobs.values()]
    link_bps = 8e9 / table.PAYLOAD_SHARE  # 1 GB of payload per second in each direction
    # One end of each of two streams.
    assert table.cores_of_worker(rows, stream, link_bps) == pytest.approx(0.5)
    # 1.5 s per GB between workers and servers, which are 2 GB per second of a worker's link.
    assert table.cores_of_worker(rows, jobs["fifo"], link_bps) == pytest.approx(3.0)
    # 2.5 s per GB between two workers, of which each takes a half, and two directions.
    assert table.cores_of_worker(rows, jobs["allreduce"], link_bps) == pytest.approx(2.5)
    # 2 GB in 5 s of two cores, or in 4 s.
    assert table.rates(jobs["fifo"], 2) == (pytest.approx(0.8), pytest.approx(0.5))


def test_payload_of_an_iteration() -> None:
    shape = processor_time.Shape("large", 8, 1000, 1, 1)
    assert shape.moved_bytes("fifo") == 4000  # two workers push and pull all of it
    assert shape.moved_bytes("dear-planned") == 2000  # each sends half of it twice
    assert shape.moved_bytes("alone") == 0


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--runtimes", "nobody"]])
def test_wrong_usage(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError):
        processor_time.main([*arguments, "--out", str(tmp_path), "--runs", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_results_of_other_options_are_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "processor_time.json"
    path.write_text(json.dumps({"settings": {"megabytes": 128, "rounds": 3}, "results": []}))
    before = path.read_text()
    with pytest.raises(UserError, match=r"was measured with the settings .*: choose another --out"):
        processor_time.main(["--rounds", "1", "--out", str(tmp_path), "--runs", str(tmp_path)])
    assert path.read_text() == before
