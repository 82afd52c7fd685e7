"""What tests of several rooms share."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from byteprophet.launcher import forked_process

# Hundreds of workers are started, and importing torch is most of their processor time.
os.environ.setdefault(forked_process.VARIABLE, "1")

with suppress(ImportError):  # MXNet's environment has no hypothesis
    import hypothesis

    # How long an example takes says what else the machine does.
    hypothesis.settings.register_profile("byteprophet", deadline=None)
    hypothesis.settings.load_profile("byteprophet")

_TESTS_PER_JOB = 30
"""Quick tests that take about as long as one that starts a job."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: one that began last would run alone in the end."""
    cost: Counter[Path] = Counter()
    for item in items:
        cost[item.path] += 1 if item.get_closest_marker("job") is None else _TESTS_PER_JOB
    items.sort(key=lambda item: -cost[item.path])


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
