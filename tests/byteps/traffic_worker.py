"""A worker of a real job with awkward traffic; every sum is known exactly and checked.

``traffic_worker.py SEED PHASE...``: each phase is a method below. Within a phase, all ranks push
the same names equally often, and nothing else is common: order, priority, pauses and where the
result goes are every rank's own. A sum that belongs to another iteration or name, or that lacks a
rank, or has one twice, is seen.
"""

from __future__ import annotations

import random
import sys
import time
import zlib

import torch
from torch import Tensor

import byteprophet.torch as bps

SIZES = (1, 2, 3, 255, 1024, 1025, 10_000, 16_384, 16_385, 65_537, 300_001, 1_000_000)


def content(name: str, iteration: int, rank: int, elements: int) -> Tensor:
    """What ``rank`` pushes: whole numbers below 2^15, so sums of a hundred ranks are exact."""
    start = zlib.crc32(f"{name}/{iteration}/{rank}".encode()) % 10_007
    return (torch.arange(start, start + elements) % 10_007 * (rank + 1)).to(torch.float32)


class Traffic:
    """The phases; ``random`` is this rank's own, ``common`` the same on all ranks."""

    def __init__(self, seed: int) -> None:
        self.rank, self.size = bps.rank(), bps.size()
        self.random = random.Random(1000 * seed + self.rank)
        self.common = random.Random(seed)
        self.pushed: dict[str, tuple[int, int, Tensor]] = {}  # name -> iteration, handle, input
        self.checked = 0

    def push(self, name: str, elements: int, iteration: int, in_place: bool = True) -> None:
        """Send, with any priority."""
        tensor = content(name, iteration, self.rank, elements)
        push = bps.push_pull_async_inplace if in_place else bps.push_pull_async
        priority = self.random.randint(-50, 50)
        handle = push(tensor, average=False, name=name, priority=priority)
        self.pushed[name] = iteration, handle, tensor

    def finish(self, name: str) -> None:
        """Wait for ``name`` and check its sum."""
        iteration, handle, tensor = self.pushed.pop(name)
        result = bps.synchronize(handle)
        elements = tensor.numel()
        expected = torch.zeros(elements)
        for rank in range(self.size):
            expected += content(name, iteration, rank, elements)
        wrong = int((result != expected).sum())
        assert wrong == 0, f"rank {self.rank}, {name}, iteration {iteration}: {wrong} wrong sums"
        if result is not tensor:
            assert torch.equal(tensor, content(name, iteration, self.rank, elements))
        self.checked += 1

    def shuffled(self, names: list[str]) -> list[str]:
        """In this rank's own order."""
        return self.random.sample(names, len(names))

    def divergent(self) -> None:
        """Each rank pushes and awaits in orders of its own, which change."""
        sizes = {f"divergent {n}": self.common.choice(SIZES[:-2]) for n in range(40)}
        self.declare(list(sizes))
        for iteration in range(8):
            for name in self.shuffled(list(sizes)):
                self.push(name, sizes[name], iteration)
                if self.random.random() < 0.1:
                    time.sleep(self.random.random() * 0.01)
            for name in self.shuffled(list(sizes)):
                self.finish(name)

    def overtaking(self) -> None:
        """The next iteration's push of a tensor follows its sum at once, others are under way."""
        names = [f"overtaking {number}" for number in range(12)]
        self.declare(names)
        sizes = {name: self.common.choice(SIZES[:-1]) for name in names}
        for name in names:
            self.push(name, sizes[name], 0)
        for iteration in range(1, 9):
            for name in self.shuffled(names):
                self.finish(name)
                if iteration < 8:
                    self.push(name, sizes[name], iteration)

    def skipping(self) -> None:
        """Tensors that skip iterations on all ranks, one that a rank pushes much later."""
        names = [f"skipping {number}" for number in range(10)]
        self.declare([*names, "late"])
        if self.rank != 0:
            self.push("late", 20_000, 0)
        for iteration in range(10):
            present = [name for name in names if self.common.random() < 0.5]
            for name in self.shuffled(present):
                self.push(name, 5_000, iteration)
            for name in present:
                self.finish(name)
            if iteration == 5 and self.rank == 0:
                time.sleep(0.5)
                self.push("late", 20_000, 0)
        self.finish("late")

    def spread(self) -> None:
        """One element to megabytes, in many partitions on several servers."""
        names = {f"spread {size}": size for size in SIZES}
        self.declare(list(names))
        for iteration in range(3):
            for name, size in names.items():
                self.push(name, size, iteration)
            for name in self.shuffled(list(names)):
                self.finish(name)

    def in_a_row(self) -> None:
        """One name again and again, in place and not, waited for and polled; others beside it."""
        self.declare(["row", "beside"])
        for iteration in range(30):
            if iteration % 10 == 0:
                self.push("beside", 100_000, iteration)
            self.push("row", 2_000, iteration, in_place=self.random.random() < 0.5)
            if self.random.random() < 0.5:
                self.poll("row")
            self.finish("row")
            if iteration % 10 == 9:
                self.finish("beside")

    def poll(self, name: str) -> None:
        """Until done; the launcher's time limit ends what never is."""
        while not bps.poll(self.pushed[name][1]):
            time.sleep(0.001)

    def twice(self) -> None:
        """A second push_pull of a name is refused while the first is under way, not added to it."""
        self.declare(["twice"])
        for iteration in range(3):
            if self.rank == 0:
                time.sleep(0.1)
            self.push("twice", 3_000, iteration)
            if self.rank != 0:  # rank 0 comes last, and may be finished in no time
                self.refused("twice")
            self.finish("twice")

    def refused(self, name: str) -> None:
        """A push_pull of ``name`` is an error now."""
        said = "nothing: it was accepted"
        try:
            bps.push_pull_async_inplace(torch.ones(3_000), average=False, name=name)
        except RuntimeError as error:
            said = str(error)
        assert f"push_pull of '{name}' while" in said, said

    def early_end(self) -> None:
        """Rank 0 ends at once, the others some time later."""
        self.push("last", 1_000_000, 0)
        self.finish("last")
        if self.rank != 0:
            time.sleep(1.5 + 0.5 * self.rank)

    def declare(self, names: list[str]) -> None:
        """Keys follow the order of declaration, which must be the same on all ranks."""
        for name in names:
            bps.declare(name)


def main() -> None:
    """Run the phases asked for."""
    bps.init()
    traffic = Traffic(int(sys.argv[1]))
    for phase in sys.argv[2:]:
        getattr(traffic, phase)()
    print(f"rank {traffic.rank}: {traffic.checked} right sums", flush=True)


if __name__ == "__main__":
    main()
