"""Samples where processors are (``perf record``), and divides the samples of a job into terms.

perf is part of the kernel's tools (``apt-get install linux-perf``). Without counters in hardware,
as in most virtual machines, its clock interrupts each processor 499 times a second. A sample shows
the function that ran, and in the kernel also its callers, which say for which system call it ran.

A thread that sends over a pair of virtual interfaces also runs the receiver's half of TCP, in a
soft interrupt at the end of its system call: the term *soft interrupts*.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PER_S = 499
_LONGEST_S = 120.0  # to write or to read a profile
_KERNEL = ("[kernel", "[guest", "[vdso]")
_HEAD = re.compile(r"^\s*(?P<comm>.*?)\s+(?P<pid>\d+)/(?P<tid>\d+)\s+(?P<s>\d+)\.(?P<ns>\d{9}):")
_FRAME = re.compile(r"^\s+[0-9a-f]+\s+(?P<symbol>.*) \((?P<file>.*)\)$")

SEND_COPY, SEND = "send: copies", "send: the rest"
RECEIVE_COPY, RECEIVE = "receive: copies", "receive: the rest"
SOFT_INTERRUPT = "soft interrupts: TCP's receiver"
LOCKS, POLLS = "waits and wake-ups: locks", "waits and wake-ups: sockets"
MEMORY, KERNEL = "memory: page faults, maps", "the kernel's rest"
COPIES, SUMS = "copies", "sums"
PYTHON, TORCH = "Python", "torch: gradients, updates"
ZEROMQ, BYTEPS, PLUGIN, MESH = "ZeroMQ", "BytePS and ps-lite", "plug-in and policy", "the mesh"
LIBRARIES = "libc, libstdc++"

TERMS = (
    SEND_COPY, SEND, RECEIVE_COPY, RECEIVE, SOFT_INTERRUPT, LOCKS, POLLS, MEMORY, KERNEL,
    COPIES, SUMS, ZEROMQ, BYTEPS, PLUGIN, MESH, PYTHON, TORCH, LIBRARIES,
)  # fmt: skip

# The first that matches any function of the kernel's stack decides.
_KERNEL_CALLS = (
    (re.compile(r"softirq|net_rx_action|napi_"), SOFT_INTERRUPT),
    (re.compile(r"sendmsg|sys_sendto|sock_write_iter"), SEND),
    (re.compile(r"recvmsg|sys_recvfrom|sock_read_iter"), RECEIVE),
    (re.compile(r"futex"), LOCKS),
    (re.compile(r"epoll|sys_poll|select|eventfd|nanosleep|sched_yield"), POLLS),
    (re.compile(r"page_fault|handle_mm|munmap|mmap|madvise|sys_brk"), MEMORY),
)
_COPY_IN_KERNEL = re.compile(r"copy_(to|from)|_copy_|rep_movs|copy_user|copyin|copyout")
# The first that matches "function file" decides.
_USER = (
    (re.compile(r"mem(cpy|move|set)", re.IGNORECASE), COPIES),
    (re.compile(r"CpuReducer|exchange::.*Sum|gloo::.*(sum|reduce)", re.IGNORECASE), SUMS),
    (re.compile(r"zmq::|zmq_|libzmq"), ZEROMQ),
    (re.compile(r" \S*(python3[^/]*|libpython\S*)$"), PYTHON),
    (re.compile(r" \S*/byteprophet/native/\S*$"), PLUGIN),
    (re.compile(r" \S*/byteprophet/\S*_core\S*$"), MESH),
    (re.compile(r" \S*/byteps/\S*$| \S*/byteprophet/\S*$"), BYTEPS),
    (re.compile(r"gloo::| \S*lib(torch|c10|gomp|shm)\S*$"), TORCH),
)


@dataclass(frozen=True)
class Sample:
    """One interrupt: which thread ran, and its stack, the running function first."""

    pid: int
    tid: int
    time_ns: int
    frames: tuple[tuple[str, str], ...]


def why_not() -> str | None:
    """Why there can be no profile, or None."""
    if shutil.which("perf") is None:
        return "perf is not installed: apt-get install linux-perf"
    tried = subprocess.run(
        ["perf", "record", "-a", "-e", "cpu-clock", "-o", "/dev/null", "--", "true"],
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    if tried.returncode == 0:
        return None
    return f"perf is not permitted: {(tried.stderr.strip().splitlines() or ['no reason'])[0]}"


@contextlib.contextmanager
def recorded(path: Path) -> Iterator[None]:
    """Samples the whole machine meanwhile, into the file at ``path``."""
    command = [
        *(
            "perf",
            "record",
            "-a",
            "-g",
            "--kernel-callchains",
            "--no-buildid",
            "--no-buildid-cache",
        ),
        *("-e", "cpu-clock", "-F", str(_PER_S), "-k", "CLOCK_MONOTONIC", "-o", str(path)),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as recording:
        try:
            while not path.exists() and recording.poll() is None:
                time.sleep(0.05)
            yield
        finally:
            recording.terminate()
            recording.wait(_LONGEST_S)


def samples_in(path: Path, pids: Iterable[int]) -> list[Sample]:
    """The samples of the processes ``pids`` in the file at ``path``."""
    command = [
        *("perf", "script", "--ns", "--no-inline", "-F", "comm,pid,tid,time,ip,sym,dso"),
        *("--pid", ",".join(map(str, pids)), "-i", str(path)),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_LONGEST_S, check=True, errors="replace"
    )
    return list(parse(done.stdout.splitlines()))


def parse(lines: Iterable[str]) -> Iterator[Sample]:
    """The samples in what ``perf script`` prints: a line for each, and one for each function."""
    head: re.Match[str] | None = None
    frames: list[tuple[str, str]] = []
    for line in (*lines, ""):
        frame = _FRAME.match(line)
        if frame is not None:
            frames.append((frame["symbol"], frame["file"]))
            continue
        if head is not None and frames:
            time_ns = int(head["s"]) * 10**9 + int(head["ns"])
            yield Sample(int(head["pid"]), int(head["tid"]), time_ns, tuple(frames))
        head = _HEAD.match(line)
        # A sample outside of the kernel has no callers: its function stands on the same line.
        alone = None if head is None else _FRAME.match(line[head.end() :])
        frames = [] if alone is None else [(alone["symbol"], alone["file"])]


def term_of(frames: tuple[tuple[str, str], ...]) -> str:
    """The term to which a stack belongs."""
    function, file = frames[0]
    if not file.startswith(_KERNEL):
        text = f"{function} {file}"
        return next((term for known, term in _USER if known.search(text)), LIBRARIES)
    functions = [name for name, where in frames if where.startswith(_KERNEL)]
    for known, term in _KERNEL_CALLS:
        if any(known.search(name) for name in functions):
            if any(_COPY_IN_KERNEL.search(name) for name in functions[:3]):
                return {SEND: SEND_COPY, RECEIVE: RECEIVE_COPY}.get(term, term)
            return term
    return KERNEL


def shares(samples: Iterable[Sample], from_ns: int, until_ns: int) -> Counter[str]:
    """How many samples within a span of time belong to each term."""
    return Counter(
        term_of(sample.frames) for sample in samples if from_ns <= sample.time_ns < until_ns
    )
