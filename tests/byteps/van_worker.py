"""A worker of a real job: checks sums of many sizes and says whether it has data links.

``van_worker.py [RANK]``: the worker of that rank uses ZeroMQ. ``van_worker.py suspend``: all leave
the job of two servers and join it again before they sum.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

import byteprophet.torch as bps

SIZES = (1, 3, 1000, 1017, 1024, 5000, 262_144, 1_000_003)
ITERATIONS = 5


def main() -> None:
    """Sum tensors of all ``SIZES`` in each of ``ITERATIONS``, all of them outstanding at once."""
    if os.environ["DMLC_WORKER_ID"] in sys.argv[1:]:
        os.environ["BYTEPROPHET_VAN"] = "zmq"
    bps.init()
    if "suspend" in sys.argv[1:]:
        bps.suspend()
        bps.resume(bps.size(), 2, bps.rank())
    rank, workers = bps.rank(), bps.size()
    for iteration in range(ITERATIONS):
        tensors = [
            torch.arange(size, dtype=torch.float32) % 1009 + iteration + 7 * rank for size in SIZES
        ]
        handles = [
            bps.push_pull_async_inplace(tensor, average=False, name=f"tensor {number}")
            for number, tensor in enumerate(tensors)
        ]
        for size, tensor, handle in zip(SIZES, tensors, handles, strict=True):
            bps.synchronize(handle)
            one = torch.arange(size, dtype=torch.float32) % 1009 + iteration
            right = workers * one + 7 * (workers * (workers - 1) // 2)
            assert torch.equal(tensor, right), f"iteration {iteration}, {size} elements"
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    print(f"rank {rank}: right sums, data links: {'data-links' in threads}", flush=True)


if __name__ == "__main__":
    main()
