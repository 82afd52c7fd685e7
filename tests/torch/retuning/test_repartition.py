"""Real jobs whose partition size changes during the run: what comes out does not.

Two ranks, one of which is slower, two servers. Sizes grow, shrink and return; tensors have fewer,
more, and no longer the same keys, among them ones that the servers have never seen.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from byteprophet import _core
from byteprophet.launcher import JobSpec, run_job

from ...thorough import by_default

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]
WORKER = Path(__file__).with_name("repartition_worker.py")
SIZES = "4096,1000000,20480,65536,4096,131072"
UNCHANGED = "0,0,0,0,0,0"


def spec_of(
    folder: Path, scheduler: str, arguments: Sequence[str], local_ranks: int = 1
) -> JobSpec:
    """Two ranks that run the worker with ``arguments``."""
    return JobSpec(
        command=(sys.executable, str(WORKER), *arguments),
        run_directory=folder / "run",
        directory=folder,
        workers=2 // local_ranks,
        local_ranks=local_ranks,
        servers=2,
        scheduler=scheduler,
        partition_bytes=65536,
        environment={"BYTEPROPHET_TIMEOUT_S": "100"},
        timeout_s=200.0,
    )


def run(folder: Path, scheduler: str, sizes: str, local_ranks: int = 1) -> list[list[str]]:
    """What the ranks say: changes, scheduled partitions, digest."""
    said: list[str] = []
    spec = spec_of(folder, scheduler, [sizes], local_ranks)
    result = run_job(spec, lambda _, line: said.append(line))
    assert result.failed is None
    words = [
        line.replace(",", "").replace(":", "").split() for line in said if " changes, " in line
    ]
    assert len(words) == 2
    return [[changes, scheduled, digest] for changes, _, scheduled, digest in words]


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    """Scheduled partitions and digest of the job that keeps its size."""
    one, other = run(tmp_path_factory.mktemp("unchanged"), "fifo", UNCHANGED)
    assert one == other
    assert one[0] == "0"
    return int(one[1]), one[2]


@pytest.mark.parametrize(
    "scheduler", by_default(_core.policy_names(), ("fifo", "prophet", "prophet-paper"))
)
def test_parameters_stay_the_same(
    tmp_path: Path, unchanged: tuple[int, str], scheduler: str
) -> None:
    for changes, scheduled, digest in run(tmp_path, scheduler, SIZES):
        assert changes == "6"
        assert int(scheduled) > 2 * unchanged[0]
        assert digest == unchanged[1]


def test_local_ranks_change_together(tmp_path: Path, unchanged: tuple[int, str]) -> None:
    """Both sum over shared memory first; BytePS rounds sizes up to pages of both."""
    results = run(tmp_path, "prophet", SIZES, local_ranks=2)
    assert [digest for _, _, digest in results] == [unchanged[1]] * 2


@pytest.mark.parametrize("rank", ["0", "1"])
def test_ranks_that_disagree_are_refused(tmp_path: Path, rank: str) -> None:
    said: list[str] = []
    spec = spec_of(tmp_path, "fifo", ["1000000,1000000", rank])
    result = run_job(spec, lambda _, line: said.append(line))
    assert result.failed is not None
    assert any("workers partition the same tensor differently" in line for line in said)
