"""A worker of a real job: many small push_pulls; rank 0 writes how much memory they cost for good.

``results/worker-0.json``: bytes by which the resident size of this worker and of the server grew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

import byteprophet.torch as bps
from byteprophet.launcher.leftovers import marked_processes

NAMES = [f"tensor {number}" for number in range(20)]
ROUNDS = 120


def resident_bytes(pid: int) -> int:
    """Memory of one process that no file backs: a fork finds its libraries' pages one by one."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def server_pid() -> int:
    """Of this job's one server."""
    mark = b"DMLC_ROLE=server"
    (pid,) = (
        pid
        for pid in marked_processes(os.environ["BYTEPROPHET_RUN"])
        if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    )
    return pid


def shared_buffers() -> list[str]:
    """BytePS' buffers in shared memory that this job has."""
    mark = os.environ["BYTEPROPHET_SHARED_MEMORY"]
    paths = Path("/dev/shm").glob(f"BytePS_ShM*{mark}*")
    return [path.name for path in paths]


def main() -> None:
    """Warm up, look, push and pull, look again."""
    bps.init()
    for name in NAMES:
        bps.declare(name)
    tensors = [torch.ones(10) for _ in NAMES]

    def rounds(count: int) -> None:
        for _ in range(count):
            handles = [
                bps.push_pull_async_inplace(tensor, name=name)
                for name, tensor in zip(NAMES, tensors, strict=True)
            ]
            for handle in handles:
                bps.synchronize(handle)

    rounds(ROUNDS // 4)
    pids = {"worker": os.getpid(), "server": server_pid()}
    before = {role: resident_bytes(pid) for role, pid in pids.items()}
    rounds(ROUNDS)
    grown = {role: resident_bytes(pid) - before[role] for role, pid in pids.items()}
    assert all(bool((tensor == 1.0).all()) for tensor in tensors)
    assert not shared_buffers()
    if bps.rank() == 0:
        path = Path(os.environ["BYTEPROPHET_RUN"]) / "results" / "worker-0.json"
        path.write_text(json.dumps({**grown, "push_pulls": ROUNDS * len(NAMES)}))


if __name__ == "__main__":
    main()
