"""PyTorch's own tests of DistributedDataParallel, with and without BYTEPROPHET_SYNC.

    pip install expecttest
    python experiments/ddp_torch_tests.py [--ranks 2,3] [--syncs dear-planned] [--only static_graph]
        [--on-cpus]

Runs the tests of DistributedDataParallel that torch ships (``distributed_test.py``, gloo). Most of
them need GPUs, and are skipped without. ``--on-cpus`` runs these, too, on CPUs
(``gpu_tests_on_cpus.py``). The table has all that pass without byteprophet, and what
each gives under a sync. Exit status 1 if one fails that passed without. Two minutes per number of
ranks and sync on two cores; more with ``--on-cpus``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from script import progress_of, run_script

from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError
from byteprophet.input_files import whole_number
from byteprophet.job.strategy import OURS
from byteprophet.runtime_settings import SYNC

_ABOUT = "ddp|distributeddataparallel|join|no_sync|static_graph|unused|stateless|sync_bn"
_WORKER, _ON_CPUS = "--worker", "--on-cpus"
_LIMIT_S = 2700.0
_progress = progress_of("ddp_torch_tests")


def main(arguments: Sequence[str]) -> None:
    """Run the tests and print the table, or run them in this process."""
    if arguments and arguments[0] == _WORKER:
        _run_here(Path(arguments[1]), *arguments[2:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--ranks", default="2", help="numbers of ranks")
    parser.add_argument("--syncs", default=",".join(OURS), help="values of BYTEPROPHET_SYNC")
    parser.add_argument("--only", default=_ABOUT, help="tests whose name matches this")
    parser.add_argument(_ON_CPUS, action="store_true", help="run tests for GPUs on CPUs")
    given = parser.parse_args(arguments)
    if importlib.util.find_spec("expecttest") is None:
        raise UserError("torch's tests need a package: pip install expecttest")
    syncs = split(given.syncs, "--syncs")
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("ranks", "test", *syncs):
        table.add_column(column, no_wrap=column == "test")
    worse = 0
    for text in split(given.ranks, "--ranks"):
        ranks = whole_number(text)
        if ranks is None or ranks < 2:
            raise UserError(f"--ranks {text}: must be numbers from 2")
        plain = _run("", ranks, given.only, given.on_cpus)
        passed = [name for name, status in plain.items() if status == "passed"]
        skipped = sum(status.startswith("skipped") for status in plain.values())
        pattern = f"^({'|'.join(passed)})$"
        found = {sync: _run(sync, ranks, pattern, given.on_cpus) for sync in syncs}
        for name in passed:
            row = [found[sync].get(name, "no result") for sync in syncs]
            worse += sum(status != "passed" for status in row)
            table.add_row(text, name, *row)
        _progress(
            f"{ranks} ranks, without byteprophet: {len(plain)} tests, {len(passed)} passed, "
            f"{skipped} skipped (most of them need GPUs)"
        )
    Console(width=120).print(table)
    if worse:
        raise JobFailed(f"{worse} results differ from those without byteprophet")


def _run(sync: str, ranks: int, pattern: str, on_cpus: bool) -> Mapping[str, str]:
    """The status of each test whose name matches, in a process of its own."""
    _progress(f"{ranks} ranks, {sync or 'without byteprophet'}")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "barrier").mkdir()
        result = Path(folder) / "result.jsonl"
        variables = {
            SYNC: sync,
            "BYTEPROPHET_TIMEOUT_S": "60",
            "BACKEND": "gloo",
            "WORLD_SIZE": str(ranks),
            "TEMP_DIR": folder,
            "OMP_NUM_THREADS": "1",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "60",
        }
        log = Path(folder) / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                (sys.executable, __file__, _WORKER, str(result), pattern, *([_ON_CPUS] * on_cpus)),
                env={**os.environ, **variables},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                status = process.wait(_LIMIT_S)
            except subprocess.TimeoutExpired:
                _progress(f"stopped after {_LIMIT_S:g} s: the rest has no result")
                status = -signal.SIGKILL
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # ranks that hang
        if not result.exists():
            raise JobFailed(f"the tests ended with status {status}: {log.read_text()!r}")
        for line in log.read_text().splitlines():
            if "exchanges its gradients itself" in line:
                _progress(line)
        return dict(map(json.loads, result.read_text().splitlines()))


def _run_here(result: Path, pattern: str, on_cpus: str = "") -> None:
    """Run the tests whose names match, and write a line for each. Ranks are forks of this."""
    import torch
    from gpu_tests_on_cpus import install

    if on_cpus:
        install()
    from torch.testing._internal.distributed import distributed_test

    torch.set_num_threads(1)
    backend: Any = distributed_test.TestDistBackend
    base: Any = distributed_test.DistributedTest._DistTestBase

    class Tests(backend, base):  # type: ignore[misc]
        """The tests, whose ranks start much sooner than spawned ones."""

        def setUp(self) -> None:
            """Start the ranks of one test."""
            super().setUp()
            self.processes: list[Any] = []
            self._start_processes(multiprocessing.get_context("fork").Process)

    with result.open("w") as file:
        for name in unittest.TestLoader().getTestCaseNames(Tests):
            if re.search(pattern, name, re.IGNORECASE):
                status = unittest.TestResult()
                Tests(name).run(status)
                print(json.dumps([name, _status(status)]), file=file, flush=True)


def _status(result: unittest.TestResult) -> str:
    if not result.wasSuccessful():
        text = (result.failures + result.errors)[0][1]
        errors = [line for line in text.splitlines() if re.match(r"\w+(Error|Exception)\b", line)]
        return f"failed: {errors[-1] if errors else text[-100:]}"
    return f"skipped: {result.skipped[0][1]}" if result.skipped else "passed"


if __name__ == "__main__":
    run_script(main)
