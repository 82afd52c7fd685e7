"""The paced worker process: its errors, and two of them training together."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from byteprophet.bench.result import read_results
from byteprophet.launcher.forked_process import Process
from byteprophet.paced.check import expected_parameters, parameters_sha256
from byteprophet.paced.worker_config import WorkerConfig
from byteprophet.schedulers import STOCK
from byteprophet.workload import Tensor, Workload, to_toml

from ..python_process import start_python

WORKLOAD = Workload(
    "small",
    4,
    (
        Tensor("a.weight", 4 * 5000, 1_000_000, 2_000_000),
        Tensor("a.bias", 4 * 10, 0, 0, burst=1),
        Tensor("b.weight", 4 * 300_000, 1_000_000, 2_000_000, burst=1),
    ),
)


def run_worker(*arguments: str, module: bool = True, **environment: str) -> Process[Any]:
    program = ["-m", "byteprophet.paced.worker"] if module else [str(GLOO_WORKER)]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("BYTEPROPHET")}
    return start_python(
        *program,
        *arguments,
        env={**inherited, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


GLOO_WORKER = Path(__file__).with_name("gloo_worker.py")


def write_config(directory: Path, workload: str) -> str:
    path = directory / "worker.toml"
    path.write_text(WorkerConfig(workload, STOCK, warmup_iterations=2, iterations=5).to_toml())
    return str(path)


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_agree_with_the_formulas(tmp_path: Path, workers: int) -> None:
    (tmp_path / "workload.toml").write_text(to_toml(WORKLOAD))
    config = write_config(tmp_path, str(tmp_path / "workload.toml"))
    processes = [
        run_worker(
            str(rank),
            str(workers),
            config,
            str(tmp_path / "rendezvous"),
            module=False,
            BYTEPROPHET_RUN=str(tmp_path),
        )
        for rank in range(workers)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    expected = parameters_sha256(expected_parameters(WORKLOAD, workers, 7))
    for rank, result in enumerate(read_results(tmp_path, workers)):
        assert (result.rank, result.size, result.updates) == (rank, workers, 7)
        assert result.parameters_sha256 == expected
        assert len(result.iteration_ns) == 5
        assert min(result.iteration_ns) >= WORKLOAD.forward_ns + WORKLOAD.backward_ns
        assert sum(result.iteration_ns) == result.last_monotonic_ns - result.first_monotonic_ns
        assert result.cpu_fraction > 0
        assert result.idle_cpu_fraction >= 0
        assert result.scheduled_partitions == 0


def test_the_batch_grows_in_mid_run(tmp_path: Path) -> None:
    (tmp_path / "workload.toml").write_text(to_toml(WORKLOAD))
    config = WorkerConfig(
        str(tmp_path / "workload.toml"),
        STOCK,
        warmup_iterations=1,
        iterations=5,
        next_batch_size=20 * WORKLOAD.batch_size,
        next_batch_at=4,
        idle_s=0.0,
    )
    (tmp_path / "worker.toml").write_text(config.to_toml())
    process = run_worker(
        *("0", "1", str(tmp_path / "worker.toml"), str(tmp_path / "rendezvous")),
        module=False,
        BYTEPROPHET_RUN=str(tmp_path),
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    (result,) = read_results(tmp_path, 1)
    # Updates 1 to 3, then 4 and 5: these last twenty times as long.
    later_ns = 20 * (WORKLOAD.forward_ns + WORKLOAD.backward_ns)
    assert min(result.iteration_ns[3:]) >= later_ns > min(result.iteration_ns[:3])
    assert result.parameters_sha256 == parameters_sha256(expected_parameters(WORKLOAD, 1, 6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "usage: python -m byteprophet.paced.worker CONFIG.toml"),
        (("missing.toml",), "missing.toml: cannot be read: No such file or directory"),
    ],
)
def test_errors_are_one_line_and_exit_status_2(arguments: tuple[str, ...], message: str) -> None:
    process = run_worker(*arguments)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors == f"byteprophet: error: {message}\n"
    assert output == ""


def test_needs_a_known_workload_and_a_run_directory(tmp_path: Path) -> None:
    process = run_worker(write_config(tmp_path, "resnet51"))
    assert "workload 'resnet51' is neither built in" in process.communicate(timeout=60)[1]
    assert process.returncode == 2
    process = run_worker(write_config(tmp_path, "resnet50"))
    assert "BYTEPROPHET_RUN is not set" in process.communicate(timeout=60)[1]
    assert process.returncode == 2
