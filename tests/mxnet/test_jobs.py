"""Real MXNet jobs of two workers: BytePS' sums, in the order of the forward pass."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mxnet", reason="MXNet has an environment of its own: make test-mxnet")

from job_worker import LAYERS, TIMEOUT_S

from byteprophet import _core
from byteprophet.launcher import JobResult, JobSpec, read_worker_results, run_job
from byteprophet.timeline.read_events import load_rank
from byteprophet.timeline.tables import TRANSFERS, tensor_of

pytestmark = pytest.mark.job
WORKER = Path(__file__).with_name("job_worker.py")


def run(folder: Path, case: str, scheduler: str) -> JobResult:
    spec = JobSpec(
        command=(sys.executable, str(WORKER), case),
        run_directory=folder / "run",
        directory=folder,
        scheduler=scheduler,
        environment={"BYTEPROPHET_RECORD": "1"},
        timeout_s=TIMEOUT_S,
    )
    return run_job(spec, lambda name, line: print(f"{name}: {line}"))  # shown if the test fails


def results(folder: Path, case: str, scheduler: str) -> list[dict[str, Any]]:
    """What both workers wrote, checked: only policies schedule."""
    folder.mkdir(exist_ok=True)
    run(folder, case, scheduler).check()
    workers = read_worker_results(folder / "run")
    assert len(workers) == 2
    for worker in workers:
        assert (worker["scheduled_partitions"] > 0) == (scheduler != "stock")
    return workers


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    first, second = results(tmp_path_factory.mktemp("stock") / "job", "train_gluon", "stock")
    assert first["digests"] == second["digests"]
    assert len(set(first["digests"].values())) == len(first["digests"])
    return dict(first["digests"])


@pytest.mark.parametrize("scheduler", _core.policy_names())
def test_parameters_are_stocks_bit_for_bit(
    tmp_path: Path, stock: dict[str, str], scheduler: str
) -> None:
    for worker in results(tmp_path, "train_gluon", scheduler):
        assert worker["digests"] == stock
        for order in worker["orders"]:
            layers = list(dict.fromkeys(name.rpartition("_")[0] for name in order))
            trained = [name for name in layers if not name.endswith("_running")]
            assert trained == list(LAYERS)


def test_every_gradient_arrives_with_the_place_that_rank_0_gave_it(tmp_path: Path) -> None:
    first, second = results(tmp_path, "other_order", "prophet")
    assert first["digest"] == second["digest"]
    order = [f"{name}_{kind}" for name in LAYERS for kind in ("weight", "bias")]
    for rank, worker in enumerate((first, second)):
        assert worker["order"] == order
        recording = load_rank(tmp_path / "run", TRANSFERS, rank)
        numbers = {name: number for number, name in recording.names.items()}
        for place, name in enumerate(order):
            mine = recording.rows[tensor_of(recording.rows) == numbers[name]]
            assert mine["iteration"].tolist() == [1, 2, 3]
            assert mine["priority"].tolist() == [-1 - place] * 3


def test_module_has_the_same_sums(tmp_path: Path) -> None:
    found = [
        worker["digest"]
        for scheduler in ("stock", "prophet")
        for worker in results(tmp_path / scheduler, "module", scheduler)
    ]
    assert len(set(found)) == 1
    recording = load_rank(tmp_path / "prophet" / "run", TRANSFERS, 0)
    numbers = {name: number for number, name in recording.names.items()}
    for place in range(2 * len(LAYERS)):
        mine = recording.rows[tensor_of(recording.rows) == numbers[f"gradient_{place}"]]
        assert mine["priority"].tolist() == [-1 - place] * 4  # of one partition in four batches


def test_what_inference_has_laid_out_anew_can_be_sent(tmp_path: Path) -> None:
    first, second = results(tmp_path, "after_inference", "stock")
    assert first["same"]
    assert not second["same"]
    assert first["sum"] == second["sum"]


def test_a_script_need_not_wait_at_its_end(tmp_path: Path) -> None:
    """It used to hang: BytePS forgot what MXNet's engine had still to send."""
    results(tmp_path, "unfinished", "stock")


@pytest.mark.parametrize("scheduler", ["stock", "prophet"])
def test_a_worker_with_fewer_batches(tmp_path: Path, scheduler: str) -> None:
    """The other one is told soon, also when it begins a tensor, and both end well."""
    first, second = results(tmp_path, "uneven", scheduler)
    assert len(first["told"]) == 2
    assert all("worker-1 (127.0.0.1) has finished after " in line for line in first["told"])
    assert second["told"] == []


def test_what_scripts_do_with_trainers_is_as_in_one_process(tmp_path: Path) -> None:
    for worker in results(tmp_path, "as_one_process", "prophet"):
        found = {name: is_near for name, is_near in worker.items() if isinstance(is_near, bool)}
        assert len(found) == 6
        assert all(found.values()), found


def test_two_modules_do_not_mix_their_gradients(tmp_path: Path) -> None:
    for worker in results(tmp_path, "modules_of_one_shape", "prophet"):
        assert worker["same"] == [True, True]


def test_ranks_that_ignore_stale_gradients_stay_equal(tmp_path: Path) -> None:
    first, second = results(tmp_path, "stale", "prophet")
    assert first["digest"] == second["digest"] != first["began"]


def test_several_devices_and_sparse_gradients_are_refused(tmp_path: Path) -> None:
    run(tmp_path, "refused", "prophet").check()
    for worker in read_worker_results(tmp_path / "run"):
        devices, sparse = worker["told"]
        assert "on 2 devices" in devices
        assert "'sparse_weight' is sparse" in sparse


def test_a_fault_in_one_worker_ends_the_job(tmp_path: Path) -> None:
    result = run(tmp_path, "failing", "p3")
    assert result.exit_status == 1
    assert result.failed is not None
    assert result.failed.startswith("worker-1 ended with status 1")
    assert "a fault of this script" in result.failed
