"""What the tests here share: profiles, a plug-in that only notes its plans, real processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from byteprophet.control.keys import make_keys
from byteprophet.profile import Burst, Profile, TensorProfile

JOB = "127.0.0.1:9000"
ITERATION_NS = 20_000_000
MEGABYTE = 1_000_000
MS = 1_000_000


def profile(*sizes: int, backward_ns: int = 10 * MS, number: int = 1) -> Profile:
    """Tensors t0, t1, ... of these sizes, ready one millisecond apart, the last one first."""
    ready_ns = [(len(sizes) - 1 - order) * MS for order in range(len(sizes))]
    return Profile(
        number=number,
        scheduler="prophet",
        workers=2,
        rank=0,
        iterations=10,
        batch_size=None,
        forward_ns=len(sizes) * MS,
        backward_ns=backward_ns,
        tensors=tuple(
            TensorProfile(
                name=f"t{order}",
                size_bytes=size,
                forward_order=order,
                ready_ns=ready_ns[order],
                spread_ns=1000,
                forward_ns=MS,
                burst=len(sizes) - 1 - order,
            )
            for order, size in enumerate(sizes)
        ),
        bursts=tuple(
            Burst(ready_ns=ready_ns[order], spread_ns=1000, tensors=1, size_bytes=sizes[order])
            for order in reversed(range(len(sizes)))
        ),
    )


class Plug:
    """A plan's target whose iterations pass with the clock; notes what it was given.

    The clock starts when a client first asks for the iteration, which is its first one.
    ``first``: iterations of its process before.
    """

    names: Mapping[int, str] = {0: "t0", 1: "t1"}

    def __init__(self, iteration_ns: int = ITERATION_NS, first: int = 0) -> None:
        self._begun_ns: int | None = None
        self._first = first
        self._iteration_ns = iteration_ns
        self._told = 0
        self.plans: list[tuple[int, dict[str, int], list[tuple[int, int, int, int]]]] = []

    def iteration(self) -> int:
        now_ns = time.monotonic_ns()
        return (now_ns - self._began_ns(now_ns)) // self._iteration_ns

    def _began_ns(self, now_ns: int) -> int:
        """When its first iteration began: at ``now_ns`` if nobody has asked before."""
        if self._begun_ns is None:
            self._begun_ns = now_ns - self._first * self._iteration_ns
        return self._begun_ns

    def partition_bytes(self) -> int:
        return 262144

    def iteration_starts(self) -> list[tuple[int, int]]:
        before, self._told = self._told, self.iteration()
        numbers = range(before + 1, self._told + 1)
        began_ns = self._began_ns(time.monotonic_ns())
        return [(number, began_ns + number * self._iteration_ns) for number in numbers]

    def stage_plan(
        self,
        at_iteration: int,
        settings: Mapping[str, int],
        times: Sequence[tuple[int, int, int, int]],
    ) -> None:
        if "refuse_me" in settings:
            raise ValueError("setting refuse_me: there is none")
        self.plans.append((at_iteration, dict(settings), list(times)))


def eventually(holds: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Waits until it holds; fails after ``timeout_s``."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    directory = tmp_path / "keys"
    make_keys(directory)
    return directory
