"""Real jobs in which a worker is several processes that sum among themselves first."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from byteprophet.launcher import JobSpec, read_worker_results, run_job
from byteprophet.launcher.leftovers import marked_processes

from ..thorough import THOROUGH

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.job
WORKER = Path(__file__).with_name("local_ranks_worker.py")
# What addition in another order may change in a parameter after six iterations in float64.
TOLERANCE = 1e-12
NOTHING: Mapping[str, str] = {}


@pytest.mark.parametrize(
    ("scheduler", "workers", "local_ranks", "environment"),
    [
        pytest.param("stock", 2, 2, NOTHING, marks=THOROUGH),
        ("fifo", 1, 3, {"BYTEPS_NCCL_GROUP_SIZE": "1", "BYTEPS_NCCL_NUM_RINGS": "2"}),
        ("p3", 2, 2, {"BYTEPS_REDUCE_ROOTS": "0,1"}),
        pytest.param("bytescheduler", 1, 3, NOTHING, marks=THOROUGH),
        ("prophet", 2, 2, NOTHING),
    ],
)
def test_local_ranks_train_as_one_process_would(
    tmp_path: Path,
    scheduler: str,
    workers: int,
    local_ranks: int,
    environment: Mapping[str, str],
) -> None:
    """The worker checks sums and broadcasts of every kind by itself."""
    front = "stock" if scheduler == "stock" else "auto"
    spec = JobSpec(
        command=(sys.executable, str(WORKER), front),
        run_directory=tmp_path / "run",
        directory=tmp_path,
        workers=workers,
        local_ranks=local_ranks,
        scheduler=scheduler,
        # Small partitions, several per tensor; BytePS rounds them up to the local ranks' pages.
        partition_bytes=65536,
        # Stock polls: on two busy cores it takes minutes.
        environment={"BYTEPROPHET_TIMEOUT_S": "240", **environment},
        timeout_s=300.0,
    )
    result = run_job(spec, None)
    assert result.failed is None
    told = read_worker_results(spec.run_directory)
    assert [(one["rank"], one["local_rank"]) for one in told] == [
        (rank, rank % local_ranks) for rank in range(workers * local_ranks)
    ]
    assert len({one["digest"] for one in told}) == 1
    assert max(one["error"] for one in told) < TOLERANCE
    if front == "auto":
        # The policy acts where pushes are: at the last local rank.
        for one in told:
            assert (one["scheduled"] > 0) == (one["local_rank"] == local_ranks - 1)


def _kill_when_it_works(spec: JobSpec, name: str) -> None:
    """Kill the process of role ``name`` once it has written a line of its own."""
    log = spec.run_directory / "logs" / f"{name}.log"
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        if log.exists() and "summing" in log.read_text():
            break
        time.sleep(0.05)
    for pid in marked_processes(str(spec.run_directory.absolute())):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        worker, local_rank = name.removeprefix("worker-").split(".")
        if {
            f"DMLC_WORKER_ID={worker}".encode(),
            f"BYTEPS_LOCAL_RANK={local_rank}".encode(),
        } <= set(environment):
            os.kill(pid, signal.SIGKILL)


_LOOP = """
import torch
import byteps.torch as bps
bps.init()
tensor = torch.zeros(500_000)
print("summing", flush=True)
while True:
    bps.synchronize(bps.byteps_push_pull(tensor, name="t"))
"""


@pytest.mark.parametrize("killed", ["worker-0.0", "worker-0.1"])
def test_a_killed_local_rank_ends_the_job_and_leaves_nothing(tmp_path: Path, killed: str) -> None:
    spec = JobSpec(
        command=(sys.executable, "-c", _LOOP),
        run_directory=tmp_path / "run",
        directory=tmp_path,
        workers=1,
        local_ranks=2,
        scheduler="prophet",
        timeout_s=100.0,
    )
    killer = threading.Thread(target=_kill_when_it_works, args=(spec, killed))
    killer.start()
    result = run_job(spec, None)
    killer.join()
    assert result.failed is not None
    assert killed in result.failed or "local rank" in result.failed
    port = tomllib.loads((spec.run_directory / "config.toml").read_text())["port"]
    assert not list(Path("/dev/shm").glob(f"BytePS_*_{port}_*"))
