"""What gloo's collectives cost on the links of ``hybrid.py``: measured alone, and fitted.

Each collective is the only one on the links. Ranks pause before each, as they compute in jobs: a
limited link lets some bytes pass at once after a pause. The time is that from the last rank's begin
to the last rank's end. Three constants are fitted, as the simulator uses them: the latency of a
collective, that of a step, and the part of the link's rate that is reached. All-reduces,
all-gathers and messages are measured; the other kinds follow.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from scipy.optimize import nnls

from byteprophet.errors import JobFailed

_SIZES = tuple(1 << at for at in (14, 17, 19, 20, 21, 22))
"""Bytes of a collective's whole tensor."""
_LEAST_FITTED_BYTES = 1 << 19
"""A limited link lets a large part of smaller ones pass at once; jobs send few of them."""
_PAUSE_S = 0.02
_REPEATS = 6
"""The first one is not counted."""
_BURST, _LARGEST_SEGMENT = "64kb", "32768"
_LATENCY = "20ms"  # as the launcher has it
_COMMAND_TIMEOUT_S = 10.0


class Measured(NamedTuple):
    """The times of one collective. ``begin_ns``, ``end_ns``: of each repetition, on this rank."""

    kind: str
    ranks: int
    size_bytes: int
    begin_ns: list[int]
    end_ns: list[int]


class Fitted(NamedTuple):
    """The constants: latency of a collective, of a step, and the rate in bytes per second."""

    base_ns: float
    step_ns: float
    bytes_per_s: float


def shorten_burst(interface: str, rate_bps: int) -> None:
    """Let less pass at once after a pause than the launcher does (256 KiB).

    It would hide whole messages. Segments become smaller, too, so that the limiter need not cut
    them.

    Raises:
        JobFailed: the link cannot be changed.
    """
    link = f"ip link set dev {interface} gso_max_size {_LARGEST_SEGMENT}"
    queue = (
        f"tc qdisc change dev {interface} root tbf rate {rate_bps}bit burst {_BURST} "
        f"latency {_LATENCY}"
    )
    for command in (link, queue):
        program, *arguments = command.split()
        path = shutil.which(program)
        if path is None:
            raise JobFailed(f"{program}: there is no such program: install iproute2")
        done = subprocess.run(
            [path, *arguments],
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise JobFailed(f"{command}: {done.stderr.strip()}")


def measure_links() -> list[Measured]:
    """Measure the collectives of the default process group, on each of its ranks."""
    found = []
    for size_bytes in _SIZES:
        for kind, run in _collectives(size_bytes // 4):
            begins: list[int] = []
            ends: list[int] = []
            for _ in range(_REPEATS):
                dist.barrier()
                time.sleep(_PAUSE_S)
                begins.append(time.monotonic_ns())
                run()
                ends.append(time.monotonic_ns())
            found.append(Measured(kind, dist.get_world_size(), size_bytes, begins[1:], ends[1:]))
    return found


def _collectives(elements: int) -> Iterable[tuple[str, Callable[[], Any]]]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = torch.zeros(elements)
    part = torch.zeros(elements // ranks)
    gathered = torch.zeros(part.numel() * ranks)
    yield "all-reduce", lambda: dist.all_reduce(whole)
    yield "all-gather", lambda: dist.all_gather_single(gathered, part)
    if rank == 0:
        yield "point-to-point", lambda: dist.send(whole, 1)
    elif rank == 1:
        yield "point-to-point", lambda: dist.recv(whole, 0)
    else:
        yield "point-to-point", lambda: None


def fit_links(measured: Sequence[Sequence[Measured]]) -> Fitted:
    """Fit the constants, by relative errors.

    Args:
        measured: of each rank of a job, in the same order; several jobs one after the other.

    Raises:
        JobFailed: no link was limited, or other programs hid it.
    """
    rows, times = [], []
    for same in measured:
        kind, ranks, size_bytes = same[0][:3]
        if size_bytes < _LEAST_FITTED_BYTES:
            continue
        begin_ns = np.array([one.begin_ns for one in same]).max(axis=0)
        end_ns = np.array([one.end_ns for one in same]).max(axis=0)
        time_ns = float(np.quantile(end_ns - begin_ns, 0.25))
        passes = {"all-reduce": 2, "all-gather": 1}.get(kind)
        if passes is None:
            row = (0.5, 1.0, float(size_bytes))
        else:
            row = (1.0, passes * ranks, passes * (ranks - 1) / ranks * size_bytes)
        rows.append(np.array(row) / time_ns)
        times.append(time_ns)
    scale = np.array([1e6, 1e6, 1.0])  # milliseconds, and nanoseconds per byte
    solution, _ = nnls(np.array(rows) * scale, np.ones(len(rows)))
    base_ns, step_ns, ns_per_byte = solution * scale
    if not ns_per_byte:
        raise JobFailed("links: larger messages took no longer: other programs disturbed too much")
    return Fitted(float(base_ns), float(step_ns), 1e9 / float(ns_per_byte))
