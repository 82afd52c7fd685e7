"""``pytest --processor-seconds N``: what tests cost, wherever and however long they wait.

Counts this process, and the processes that it has waited for. So what a fixture of several tests
does counts for the first one, and what fork servers import does not count: they go on.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator, Iterator

import pytest

_NAME = "processor_s"
_STARTED = pytest.StashKey[float]()


def _now_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processor-seconds",
        type=int,
        default=0,
        metavar="N",
        help="show what each folder and the N dearest tests took of the processor",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    item.stash[_STARTED] = _now_s()
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        # In what is reported of the teardown, also by processes of xdist.
        item.user_properties.append((_NAME, _now_s() - item.stash[_STARTED]))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    shown: int = config.getoption("--processor-seconds")
    if not shown:
        return
    tests: dict[str, float] = defaultdict(float)
    folders: dict[str, float] = defaultdict(float)
    for name, taken_s in _taken(terminalreporter):
        path = name.partition("::")[0]
        tests[name] += taken_s
        folders["/".join(path.split("/")[:-1][:2])] += taken_s
    for title, table in (("folders", folders), (f"{shown} dearest tests", tests)):
        terminalreporter.section(f"processor seconds: {title}")
        dearest = sorted(table.items(), key=lambda row: -row[1])
        for name, taken_s in dearest[: shown if table is tests else None]:
            terminalreporter.line(f"{taken_s:8.1f} {name}")
    terminalreporter.line(f"{sum(tests.values()):8.1f} in all")


def _taken(reporter: pytest.TerminalReporter) -> Iterator[tuple[str, float]]:
    """Tests, and what they took; one that was run again comes twice."""
    for reports in reporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.when == "teardown":
                yield from (
                    (report.nodeid, float(str(value)))
                    for name, value in report.user_properties
                    if name == _NAME
                )
