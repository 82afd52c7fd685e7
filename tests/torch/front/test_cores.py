"""Cores are scarce when more threads want to run than there are cores, and not before."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from byteprophet.torch.front.cores import Cores

STEPS, STEP_S = 40, 0.02


@pytest.fixture
def one_core() -> Iterator[int]:
    """This thread runs on one core only, whose number is returned."""
    before = os.sched_getaffinity(0)
    core = min(before)
    os.sched_setaffinity(0, {core})
    yield core
    os.sched_setaffinity(0, before)


def scarce_while_computing(cores: Cores) -> bool:
    thread = threading.get_native_id()
    scarce = False
    for _ in range(STEPS):
        until_s = time.monotonic() + STEP_S
        while time.monotonic() < until_s:
            pass
        scarce = cores.are_scarce(thread)
    return scarce


def test_another_thread_on_the_only_core_makes_it_scarce(one_core: int) -> None:
    endless = f"import os; os.sched_setaffinity(0, {{{one_core}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", endless]) as other:
        try:
            assert scarce_while_computing(Cores())
        finally:
            other.kill()


def test_a_kernel_that_does_not_tell_means_that_cores_are_not_scarce() -> None:
    cores, unknown = Cores(), 2**30
    assert not cores.are_scarce(unknown)
    assert not cores.are_scarce(unknown)
