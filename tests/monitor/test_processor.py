"""How busy the cores are, from counters that are given, and from the system's."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from byteprophet.monitor import processor
from byteprophet.monitor.processor import WINDOW_NS, ProcessorUse, core_seconds

S = 1_000_000_000


class Machine:
    """Two cores, of which ``busy`` compute."""

    def __init__(self) -> None:
        self.now_ns, self.busy_s, self.busy = 0, 0.0, 0.0

    def run(self, seconds: float) -> None:
        self.now_ns += round(seconds * S)
        self.busy_s += self.busy * seconds

    def counters(self) -> tuple[float, float]:
        return self.busy_s, 2 * self.now_ns / S


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_the_share_is_of_the_last_seconds(machine: Machine) -> None:
    use = ProcessorUse(machine.counters, lambda: machine.now_ns)
    machine.busy = 2
    machine.run(30)
    assert use.share() == 1
    machine.busy = 0.5
    for _ in range(WINDOW_NS // S):
        machine.run(1)
        use.share()
    assert use.share() == pytest.approx(0.25)


def test_a_moment_says_nothing(machine: Machine) -> None:
    use = ProcessorUse(machine.counters, lambda: machine.now_ns)
    machine.run(0.2)
    assert use.share() is None
    machine.run(0.4)
    assert use.share() == 0


def test_looks_are_forgotten(machine: Machine) -> None:
    use = ProcessorUse(machine.counters, lambda: machine.now_ns)
    for _ in range(1000):
        machine.run(1)
        use.share()
    assert len(use._looks) <= 2 + WINDOW_NS // S


def _stat(**busy_s: int) -> str:
    """``/proc/stat`` of cores that computed for so long, of a thousand seconds each."""
    ticks = os.sysconf("SC_CLK_TCK")
    rows = {"cpu": sum(busy_s.values()), **busy_s}
    lines = [
        # The rest was idle or waited for disks; a virtual machine is a part of the user's time.
        f"{name} {own * ticks} 0 0 {(900 - own) * ticks} {100 * ticks} 0 0 0 {own * ticks} 0"
        for name, own in rows.items()
    ]
    return "\n".join([*lines, "intr 5 0", ""])


@pytest.mark.parametrize(
    ("cores", "listed", "busy_s"),
    [
        ({0, 2}, {"cpu0": 1, "cpu1": 20, "cpu2": 300}, 301),
        ({2, 3}, {"cpu0": 1, "cpu2": 300, "cpu3": 20}, 320),  # core 1 is offline
        ({5, 7}, {"cpu0": 1, "cpu1": 20}, 21),  # a container's own, numbered anew
    ],
)
def test_cores_are_told_by_their_numbers(
    cores: set[int],
    listed: dict[str, int],
    busy_s: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stat = tmp_path / "stat"
    stat.write_text(_stat(**listed))
    monkeypatch.setattr(processor, "_STAT", stat)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores)
    assert core_seconds() == (busy_s, 1000 * len(cores))


def test_the_systems_counters_are_of_our_cores() -> None:
    before, begin_ns = core_seconds(), time.monotonic_ns()
    own_s = time.process_time()
    while time.process_time() - own_s < 0.15:
        pass
    after = core_seconds()
    wall_s = (time.monotonic_ns() - begin_ns) / S
    assert after[0] - before[0] >= 0.1  # ticks of 10 ms
    assert after[1] - before[1] <= (wall_s + 0.1) * len(os.sched_getaffinity(0))
