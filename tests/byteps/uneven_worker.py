"""Worker 1 leaves while worker 0 still counts on it; worker 0 says what it was told, and goes on.

``uneven_worker.py front``   worker 1 has fewer batches
``uneven_worker.py direct``  worker 1 suspends, then resumes, then ends; nobody has an optimizer
``uneven_worker.py unwaited shutdown|end``  worker 0 leaves without waiting for its push_pulls
``uneven_worker.py types``  workers push another type by one name
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import byteps.torch as bps
import torch
from byteps.torch.ops import push_pull_group_sync_inplace

ALONE_S = 5.0  # longer than a job goes on that has lost a role


def together(name: str) -> None:
    value = torch.full((50_000,), float(bps.rank()))
    bps.synchronize(bps.byteps_push_pull(value, name=name, average=False))
    assert torch.equal(value, torch.ones(50_000))


def refused(what: str, action: Callable[[], object]) -> None:
    began_s = time.monotonic()
    try:
        action()
    except RuntimeError as error:
        print(f"{what} after {time.monotonic() - began_s:.0f} s: {error}", flush=True)


def front() -> None:
    layer = torch.nn.Linear(100, 100)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(layer.parameters(), lr=1e-6), named_parameters=layer.named_parameters()
    )

    def train() -> None:
        for _ in range(8 if bps.rank() == 0 else 5):
            optimizer.zero_grad()
            layer(torch.ones(4, 100)).sum().backward()
            optimizer.step()

    if bps.rank() == 0:
        refused("trains", train)
        time.sleep(ALONE_S)
    else:
        refused("never", train)


def direct() -> None:
    together("known")
    if bps.rank() == 0:
        refused("suspended", lambda: together("known"))
    bps.suspend()
    bps.resume(2, 1, bps_rank)
    for _ in range(3):
        together("known")
    if bps.rank() == 0:
        time.sleep(ALONE_S)
        refused("new", lambda: together("of worker 0 alone"))
        refused("known", lambda: together("known"))
        refused("again", lambda: together("known"))
        time.sleep(ALONE_S)
    else:
        time.sleep(ALONE_S + 2)


def unwaited() -> None:
    empty = bps.byteps_push_pull(torch.zeros(0), name="empty")
    assert bps.synchronize(empty).numel() == 0  # nothing is sent
    in_group, count = push_pull_group_sync_inplace(torch.zeros(0), name="empty of a group")
    assert bps.synchronize(in_group).numel() == 0
    assert count == 1
    if bps.rank() == 0:
        bps.byteps_push_pull(torch.zeros(50_000), name="known", average=False)
        if sys.argv[2] == "shutdown":
            bps.shutdown()
    else:
        time.sleep(1)  # until worker 0 has left
        together("known")


def types() -> None:
    dtype = torch.int64 if bps.rank() == 0 else torch.float64
    bps.synchronize(bps.byteps_push_pull(torch.ones(10, dtype=dtype), name="typed"))


if __name__ == "__main__":
    bps.init()
    bps_rank = bps.rank()
    {"front": front, "direct": direct, "unwaited": unwaited, "types": types}[sys.argv[1]]()
    print("good end", flush=True)
