"""What tests of several rooms share."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from byteprophet.launcher import forked_process

from . import processor_time, thorough
from .processor_time import (  # noqa: F401 (hooks)
    pytest_runtest_setup,
    pytest_runtest_teardown,
    pytest_terminal_summary,
)

# Random jobs and the like are those of the experiments.
sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
# Where Python is told to write no bytecode, each of thousands of processes that tests start
# would compile what it imports of the package.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Hundreds of workers are started, and importing torch is most of their processor time.
os.environ.setdefault(forked_process.VARIABLE, "1")
# As ranks without servers have it: so all workers have one fork server.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# As workers have it; nothing has imported torch or numpy yet. Their threads wait for each other in
# loops: where others need the processors, too, small operations take ten times as much of them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Compiled kernels without vector instructions: to find out which of them work, torch compiles six
# programs, and each process that compiles loads them.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
# What tests start inherits this. BytePS as shipped has nine threads per worker that look for work
# every microsecond, as far as the kernel lets them: with its usual 50 us, jobs of stock take four
# times as much of the processor. Threads in real time, which stand for accelerators, ignore it.
_TIMER_SLACK_NS = 500_000
_PR_SET_TIMERSLACK = 29
ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(_TIMER_SLACK_NS), 0, 0, 0)

with suppress(ImportError):  # MXNet's environment has no hypothesis
    import hypothesis

    # How long an example takes says what else the machine does.
    hypothesis.settings.register_profile("byteprophet", deadline=None)
    hypothesis.settings.load_profile("byteprophet")

_TESTS_PER_JOB = 30
"""Quick tests that take about as long as one job."""
_COLLECTING_S = 120.0
_LOOK_AGAIN_S = 0.1
_JOBS_BY = 0.9
"""Files that start jobs come within this part of all: one that began last would run alone."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import all test modules without looking for garbage, now and in them later.

    What they import are millions of objects that live as long as the process.
    """
    gc.disable()
    try:
        with _one_after_the_other():
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _one_after_the_other() -> Iterator[None]:
    """Has the test processes of one run collect in turn.

    Collecting for the first time takes three times as long as later: pytest rewrites all
    assertions, and hypothesis reads all modules for constants. Both keep what they have made in
    files, so that only the first process makes them. A process that has waited for longer than
    ``_COLLECTING_S`` collects beside the one that holds the lock.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    folder = os.open(Path(__file__).parent, os.O_RDONLY)
    deadline_s = time.monotonic() + _COLLECTING_S
    try:
        while time.monotonic() < deadline_s:
            with suppress(BlockingIOError):
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(_LOOK_AGAIN_S)
        yield
    finally:
        os.close(folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    processor_time.add_option(parser)
    thorough.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    thorough.configure(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, and mix those that start jobs with the others.

    Jobs mostly wait, the others compute: side by side they take less time than one kind after the
    other.
    """
    thorough.deselect(config, items)
    cost: Counter[Path] = Counter()
    jobs: set[Path] = set()
    for item in items:
        mark = item.get_closest_marker("job")
        cost[item.path] += 1 if mark is None else _TESTS_PER_JOB * sum(mark.args or (1,))
        if mark is not None:
            jobs.add(item.path)
    others = cost.keys() - jobs
    place: dict[Path, float] = {}
    for files, end in ((jobs, _JOBS_BY), (others, 1.0)):
        longest_first = sorted(files, key=lambda path: (-cost[path], path))
        place |= {path: end * turn / len(files) for turn, path in enumerate(longest_first)}
    items.sort(key=lambda item: place[item.path])


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Processes that the test starts are ended by SIGINT and SIGHUP, as in a terminal.

    A shell ignores SIGINT for what it starts in the background, and nohup ignores SIGHUP. Children
    inherit that, so a test that sends one of them would wait in vain.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
