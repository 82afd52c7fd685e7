"""A worker of a real job in which one worker is slow: checks every sum of many iterations.

Values are such that each iteration's sum is known exactly, and neither another iteration's sum nor
any worker's own contribution equals it: a response that the server overwrote is seen.
"""

from __future__ import annotations

import sys

import torch

import byteprophet.torch as bps

TENSORS = 2
ELEMENTS = 1 << 20  # 1 MiB: far more than what TCP has taken when the next iteration overwrites it


def main() -> None:
    """Sum ``TENSORS`` tensors in each of ``sys.argv[1]`` iterations."""
    bps.init()
    rank, size = bps.rank(), bps.size()
    names = [f"tensor {number}" for number in range(TENSORS)]
    for name in names:
        bps.declare(name)
    tensors = {name: torch.zeros(ELEMENTS) for name in names}
    handles: dict[str, int] = {}

    def push(name: str, iteration: int) -> None:
        tensors[name].fill_(float((iteration + 1) * (rank + 1)))
        handles[name] = bps.push_pull_async_inplace(tensors[name], average=False, name=name)

    iterations = int(sys.argv[1])
    for name in names:
        push(name, 0)
    for iteration in range(iterations):
        expected = (iteration + 1) * size * (size + 1) / 2
        for name in names:
            bps.synchronize(handles[name])
            wrong = int((tensors[name] != expected).sum())
            assert wrong == 0, f"iteration {iteration}, {name}, rank {rank}: {wrong} wrong elements"
            # At once, as the next iteration's push is what could overwrite this one's response.
            if iteration + 1 < iterations:
                push(name, iteration + 1)
    print(f"rank {rank}: {iterations} iterations of right sums", flush=True)


if __name__ == "__main__":
    main()
