"""PyTorch's own tests of DistributedDataParallel, with and without BYTEPROPHET_SYNC.

    pip install expecttest
    python experiments/ddp_torch_tests.py [--ranks 2,3] [--syncs dear-planned] [--only static_graph]
        [--on-cpus] [--each]

Runs the tests of DistributedDataParallel that torch ships (``distributed_test.py``, gloo). Most of
them need GPUs, and are skipped without. ``--on-cpus`` runs these, too, on CPUs
(``gpu_tests_on_cpus.py``).

Tried under a sync are the tests that pass without byteprophet. The table says how many pass, and
who has exchanged gradients in those: our synchronisers, DistributedDataParallel itself, as a line
of byteprophet says, or nobody, because the test trains nothing. A test that fails for a reason that
``_EXPLAINED`` has is an exception, printed with its reason. Exit status 1 if another one fails.
``--each`` prints what became of each test.

Writes ``ddp_torch_tests.json`` to ``--out``, and goes on where it stopped. Two minutes per number
of ranks and sync on two cores; more with ``--on-cpus``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rows import Rows
from script import progress_of, run_script

from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError
from byteprophet.input_files import whole_number
from byteprophet.job.strategy import OURS as SYNCS
from byteprophet.runtime_settings import SYNC

_ABOUT = "ddp|distributeddataparallel|join|no_sync|static_graph|unused|stateless|sync_bn"
_MAP = "looks at the reducer's own map of used parameters, which ours does not keep"
_INDICES = "asks for parameters' indices in an error message, where ours has a name"
_EXPLAINED = {
    "test_ddp_logging_data_cpu": (
        "asks for the times of backward in the logging data, which a reducer that exchanges "
        "nothing does not have"
    ),
    # Of tests for GPUs, on CPUs:
    "test_ddp_control_flow_different_across_ranks": _MAP,
    "test_ddp_control_flow_same_across_ranks": _MAP,
    "test_ddp_multiple_nested_unused_params_err_ignore_params": _INDICES,
    "test_ddp_multiple_nested_unused_params_error": _INDICES,
    "test_ddp_profiling_torch_profiler": "counts gloo's all-reduces in a profile",
    "test_ddp_unused_params_rebuild_buckets_exception": "asks for has_error in the logging data",
    "test_detect_ddp_is_actually_static": "asks the reducer whether the graph was static so far",
    "test_invalid_static_graph": "asks for the words of the reducer's error message",
    "test_skip_all_reduce_unused_parameters": "counts buckets of the reducer in the logging data",
}
_WORKER, _ON_CPUS = "--worker", "--on-cpus"
_LIMIT_S = 2700.0
_PASSED = "passed"
OURS, DDP, BOTH, NOBODY = "ours", "DDP", "ours, then DDP", "nobody"
_TAKEN = "a front of byteprophet was made"
_SAID = re.compile(r"exchanges its gradients itself: (.*)")
_progress = progress_of("ddp_torch_tests")

Outcome = Mapping[str, str]
"""``status``: passed, "skipped: ..." or "failed: ...". ``by``: who exchanged gradients. ``said``:
why DistributedDataParallel did it itself."""


def main(arguments: Sequence[str]) -> None:
    """Run the tests and print the table, or run them in this process."""
    if arguments and arguments[0] == _WORKER:
        _run_here(Path(arguments[1]), *arguments[2:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--ranks", default="2", help="numbers of ranks")
    parser.add_argument("--syncs", default=",".join(SYNCS), help="values of BYTEPROPHET_SYNC")
    parser.add_argument("--only", default=_ABOUT, help="tests whose name matches this")
    parser.add_argument(_ON_CPUS, action="store_true", help="run tests for GPUs on CPUs")
    parser.add_argument("--each", action="store_true", help="print what became of each test")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="directory for the results")
    given = parser.parse_args(arguments)
    if importlib.util.find_spec("expecttest") is None:
        raise UserError("torch's tests need a package: pip install expecttest")
    sizes = [_ranks(text) for text in split(given.ranks, "--ranks")]
    syncs = split(given.syncs, "--syncs")
    name = f"ddp_torch_tests{'_on_cpus' * given.on_cpus}.json"
    rows = Rows(given.out / name, {"only": given.only, "on_cpus": given.on_cpus}, paced=False)
    found: dict[int, Mapping[str, Mapping[str, Outcome]]] = {}
    for ranks in sizes:
        plain = _tests(rows, "", ranks, given.only, given.on_cpus)
        pattern = f"^({'|'.join(passed_in(plain))})$"
        under = {sync: _tests(rows, sync, ranks, pattern, given.on_cpus) for sync in syncs}
        found[ranks] = {"": plain, **under}
    console = Console(width=110, highlight=False)
    if given.each:
        console.print(_table_of_each(found, syncs))
    lines, unexplained = summary(found)
    console.print(_table(found))
    console.print("\n".join(lines))
    if unexplained:
        raise JobFailed(f"{unexplained} results differ from those without byteprophet")


def _ranks(text: str) -> int:
    ranks = whole_number(text)
    if ranks is None or ranks < 2:
        raise UserError(f"--ranks {text}: must be numbers from 2")
    return ranks


def passed_in(tests: Mapping[str, Outcome]) -> list[str]:
    """The names of the tests that have passed."""
    return [name for name, outcome in tests.items() if outcome["status"] == _PASSED]


def _tests(rows: Rows, sync: str, ranks: int, pattern: str, on_cpus: bool) -> Mapping[str, Outcome]:
    """What became of each test whose name matches; from the file if it has been run."""
    cell = {"ranks": ranks, "sync": sync}
    for missing in rows.missing([cell]):
        rows.add({**missing, "tests": _run(sync, ranks, pattern, on_cpus)})
    tests: Mapping[str, Outcome] = rows.of(cell)[0]["tests"]
    return tests


def _table(found: Mapping[int, Mapping[str, Mapping[str, Outcome]]]) -> Table:
    """How many tests passed, by number of ranks and sync."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("ranks", "sync"):
        table.add_column(column)
    for column in ("tried", "passed", "by ours", "by DDP", "no training", "exceptions"):
        table.add_column(column, justify="right")
    for ranks, under in found.items():
        tried = passed_in(under[""])
        for sync, tests in under.items():
            if sync:
                passed = [name for name in passed_in(tests) if name in tried]
                by = Counter(tests[name]["by"] for name in passed)
                numbers = (len(tried), len(passed), by[OURS], by[DDP] + by[BOTH], by[NOBODY])
                row = [*map(str, numbers), str(len(tried) - len(passed))]
                table.add_row(str(ranks), sync, *row)
    return table


def summary(
    found: Mapping[int, Mapping[str, Mapping[str, Outcome]]],
) -> tuple[list[str], int]:
    """Lines below the table, and how many failures have no known reason.

    ``found``: by number of ranks and sync ("": without byteprophet), what became of each test.
    """
    lines = []
    said: Counter[tuple[str, str]] = Counter()
    failed: Counter[str] = Counter()
    unexplained = 0
    for ranks, under in found.items():
        tried = passed_in(under[""])
        skipped = sum(each["status"].startswith("skipped") for each in under[""].values())
        other = len(under[""]) - len(tried) - skipped
        lines.append(
            f"{ranks} ranks, without byteprophet: {len(under[''])} tests, {len(tried)} passed, "
            f"{skipped} skipped (most of them need GPUs), {other} failed"
        )
        for sync, tests in under.items():
            for name in tried if sync else ():
                outcome = tests.get(name, {"status": "no result", "said": ""})
                if outcome["status"] == _PASSED:
                    said[name, outcome["said"]] += bool(outcome["said"])
                elif name in _EXPLAINED:
                    failed[name] += 1
                else:
                    unexplained += 1
                    lines.append(f"{ranks} ranks, {sync}: {name}: {outcome['status']}")
    lines += [f"by DDP, {n} x: {name}: {reason}" for (name, reason), n in said.items() if n]
    lines += [f"exception, {n} x: {name} {_EXPLAINED[name]}" for name, n in failed.items()]
    return lines, unexplained


def _table_of_each(
    found: Mapping[int, Mapping[str, Mapping[str, Outcome]]], syncs: Sequence[str]
) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("ranks", "test", *syncs):
        table.add_column(column, no_wrap=column == "test")
    for ranks, under in found.items():
        for name in passed_in(under[""]):
            outcomes = [under[sync].get(name, {"status": "no result"}) for sync in syncs]
            cells = [
                f"by {outcome['by']}" if outcome["status"] == _PASSED else outcome["status"]
                for outcome in outcomes
            ]
            table.add_row(str(ranks), name, *cells)
    return table


def _run(sync: str, ranks: int, pattern: str, on_cpus: bool) -> dict[str, Outcome]:
    """What becomes of each test whose name matches, in a process of its own."""
    _progress(f"{ranks} ranks, {sync or 'without byteprophet'}")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "barrier").mkdir()
        result, log = Path(folder) / "result.jsonl", Path(folder) / "log"
        variables = {
            SYNC: sync,
            "BYTEPROPHET_TIMEOUT_S": "60",
            "BACKEND": "gloo",
            "WORLD_SIZE": str(ranks),
            "TEMP_DIR": folder,
            "OMP_NUM_THREADS": "1",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "60",
        }
        command = (sys.executable, __file__, _WORKER, folder, pattern, *([_ON_CPUS] * on_cpus))
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
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
        return dict(map(json.loads, result.read_text().splitlines()))


def _run_here(folder: Path, pattern: str, on_cpus: str = "") -> None:
    """Run the tests whose names match, and write a line for each. Ranks are forks of this."""
    import torch
    from gpu_tests_on_cpus import never_skip, stay_on_cpus

    if on_cpus:
        never_skip()
    from torch.testing._internal.distributed import distributed_test

    torch.set_num_threads(1)
    if on_cpus:
        stay_on_cpus()
    if os.environ[SYNC]:
        from byteprophet.torch.front.front import Front

        Front.__init__ = _noting(Front.__init__)  # type: ignore[method-assign]
    backend: Any = distributed_test.TestDistBackend
    base: Any = distributed_test.DistributedTest._DistTestBase

    class Tests(backend, base):  # type: ignore[misc]
        """The tests, whose ranks start much sooner than spawned ones."""

        def setUp(self) -> None:
            """Start the ranks of one test."""
            super().setUp()
            self.processes: list[Any] = []
            self._start_processes(multiprocessing.get_context("fork").Process)

    log = folder / "log"
    with (folder / "result.jsonl").open("w") as file:
        for name in unittest.TestLoader().getTestCaseNames(Tests):
            if re.search(pattern, name, re.IGNORECASE):
                begins = log.stat().st_size
                status = unittest.TestResult()
                Tests(name).run(status)
                printed = log.read_bytes()[begins:].decode(errors="replace")
                outcome = {"status": _status(status), **exchanged(printed)}
                print(json.dumps([name, outcome]), file=file, flush=True)


def _noting(plain: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(plain)
    def made(*arguments: Any, **options: Any) -> None:
        print(_TAKEN, file=sys.stderr, flush=True)
        plain(*arguments, **options)

    return made


def exchanged(printed: str) -> dict[str, str]:
    """Who exchanged the gradients of a test, by what its ranks have printed, and why."""
    said = sorted(set(_SAID.findall(printed)))
    by = (OURS if not said else BOTH) if _TAKEN in printed else (DDP if said else NOBODY)
    return {"by": by, "said": "; ".join(said)}


def _status(result: unittest.TestResult) -> str:
    if not result.wasSuccessful():
        text = (result.failures + result.errors)[0][1]
        errors = [line for line in text.splitlines() if re.match(r"\w+(Error|Exception)\b", line)]
        return f"failed: {errors[-1] if errors else text[-100:]}"
    return f"skipped: {result.skipped[0][1]}" if result.skipped else _PASSED


if __name__ == "__main__":
    run_script(main)
