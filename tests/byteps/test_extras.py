"""What else BytePS offers, in real jobs: exact under every policy, equal to BytePS as shipped.

Suspending and resuming, fp16 and BytePS' own compressors, DistributedDataParallel, other types.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from byteprophet import _core
from byteprophet.launcher import JobResult, JobSpec, read_worker_results, run_job
from byteprophet.launcher.forked_process import Process
from byteprophet.session.monitoring import PROBE_VARIABLE

from ..python_process import start_python
from ..thorough import by_default

pytestmark = pytest.mark.job
HERE = Path(__file__).parent
# One for all, as compressors work on partitions.
PARTITION_BYTES = 200_704


def run(
    script: str,
    folder: Path,
    scheduler: str,
    servers: int = 2,
    timeout_s: str = "60",
    echo: Callable[[str], None] | None = None,
    arguments: Sequence[str] = (),
    workers: int = 2,
    probe: str = "0",
) -> tuple[JobResult, list[str]]:
    """A job, and its lines. ``echo`` gets each of them, too, when it comes."""
    lines: list[str] = []

    def take(_role: str, line: str) -> None:
        lines.append(line)
        if echo is not None:
            echo(line)

    spec = JobSpec(
        command=(sys.executable, str(HERE / script), *arguments),
        run_directory=folder,
        workers=workers,
        servers=servers,
        scheduler=scheduler,
        partition_bytes=PARTITION_BYTES,
        environment={"BYTEPROPHET_TIMEOUT_S": timeout_s, PROBE_VARIABLE: probe},
        timeout_s=150.0,
    )
    return run_job(spec, take), lines


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("stock")
    result, _ = run("extras_worker.py", folder, "stock")
    assert result.failed is None
    first, second = read_worker_results(folder)
    assert first == second
    return first


@pytest.mark.parametrize("scheduler", by_default(_core.policy_names(), ("prophet",)))
def test_every_policy_equals_byteps_as_shipped(
    shipped: object, tmp_path: Path, scheduler: str
) -> None:
    """Most is compared with a single process inside the worker, bit for bit."""
    result, lines = run("extras_worker.py", tmp_path, scheduler)
    assert result.failed is None
    assert any(f"scheduling pushes with {scheduler}" in line for line in lines)
    assert read_worker_results(tmp_path) == [shipped, shipped]


def start_newcomer(newcomers: list[Process[str]], line: str) -> None:
    """Start the worker that joins, when a worker asks for it."""
    found = re.search(r"newcomer (\{.*\})", line)
    if found is not None:
        environment = {**os.environ, **json.loads(found[1])}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        newcomers.append(
            start_python(HERE / "resizing_worker.py", "late", env=environment, **pipes)
        )


def test_workers_leave_and_join(tmp_path: Path) -> None:
    """The newcomer is not the launcher's: it goes on when the launcher has ended the job."""
    outcomes = []
    for scheduler in ("stock", "prophet"):
        newcomers: list[Process[str]] = []
        start = functools.partial(start_newcomer, newcomers)
        result, lines = run("resizing_worker.py", tmp_path / scheduler, scheduler, 1, echo=start)
        assert result.failed is None
        (newcomer,) = newcomers
        lines += newcomer.communicate(timeout=60)[0].splitlines()
        assert newcomer.returncode == 0, lines
        # Other threads' messages are written in pieces: the beginning of one may be in front.
        outcomes.append(sorted(re.findall(r"after \d+ steps, .*", "\n".join(lines))))
    assert outcomes[0] == outcomes[1]
    together, alone, joined = (
        [line.rpartition(" ")[2] for line in outcomes[0] if line.startswith(f"after {steps} ")]
        for steps in (3, 5, 8)
    )
    assert (len(together), len(alone), len(joined)) == (2, 1, 2)
    assert together[0] == together[1]
    assert joined[0] == joined[1]


def test_a_worker_joins_one_that_began_alone(tmp_path: Path) -> None:
    """Both probe the network, although one worker alone could not."""
    newcomers: list[Process[str]] = []
    start = functools.partial(start_newcomer, newcomers)
    result, lines = run(
        "resizing_worker.py",
        tmp_path,
        "prophet",
        servers=1,
        echo=start,
        arguments=("alone",),
        workers=1,
        probe="1",
    )
    assert result.failed is None, lines
    (newcomer,) = newcomers
    lines += newcomer.communicate(timeout=60)[0].splitlines()
    joined = re.findall(r"after 8 steps, rank (\d): (\w+)", "\n".join(lines))
    assert sorted(rank for rank, _ in joined) == ["0", "1"]
    assert joined[0][1] == joined[1][1]


def test_suspending_alone_is_an_error(tmp_path: Path) -> None:
    result, lines = run("lonely_worker.py", tmp_path, "stock", timeout_s="2")
    assert result.failed is not None
    assert result.failed.startswith("worker-0 ended with status 1")
    assert "suspend: waited 2 s for the rest of the job" in result.failed
    assert not [line for line in lines if "Traceback" in line]
