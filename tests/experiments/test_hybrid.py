"""experiments/hybrid.py: what ranks call is what the simulator infers, and they train as one does.

A job of four real ranks trains small models under five strategies. Nothing here depends on time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hybrid_cases import CHECKED, REPORTED, TUNED, Case
from hybrid_device import Device, Operation, is_paceable
from hybrid_links import Measured, fit_links
from hybrid_local import local_calls, works_for
from hybrid_operators import measure, read_operators, write_operators
from hybrid_predict import called, inferred
from hybrid_worker import Config

from byteprophet.launcher import JobSpec, run_job
from byteprophet.paced.pacing import Clock
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.collectives import CollectiveCosts, Group

_WORKER = Path(__file__).parents[2] / "experiments" / "hybrid_worker.py"
_ALONE = tuple(Case(model, "dp=1 micro_batch=8") for model in ("small", "small-llama"))


def _run(directory: Path, cases: Sequence[Case], ranks: int) -> list[dict[str, Any]]:
    """What each rank saw of these cases."""
    directory.mkdir()
    file = directory / "hybrid.json"
    config = Config([[case.model, case.line] for case in cases], losses=True)
    file.write_text(json.dumps(asdict(config)))
    spec = JobSpec(
        command=(sys.executable, str(_WORKER), str(file)),
        run_directory=directory,
        workers=ranks,
        servers=0,
        timeout_s=240,
        environment={"OMP_NUM_THREADS": "1"},
        forks=True,
    )
    run_job(spec).check()
    return [json.loads((directory / f"hybrid-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[Any]]:
    """What one rank saw alone, and what four saw together."""
    folder = tmp_path_factory.mktemp("hybrid")
    return _run(folder / "one", _ALONE, 1), _run(folder / "four", CHECKED, 4)


@pytest.mark.job
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CHECKED, ids=lambda case: case.name)
def test_ranks_call_what_the_simulator_infers(jobs: Any, case: Case) -> None:
    infers = inferred(case)
    per_stage = case.ranks // len(infers)
    for rank, seen in enumerate(each[case.name] for each in jobs[1]):
        assert not seen["unknown"]
        assert called(seen["calls"]) == infers[rank // per_stage]


@pytest.mark.job
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CHECKED, ids=lambda case: case.name)
def test_ranks_train_as_one_process_does(jobs: Any, case: Case) -> None:
    """The mean loss over the batch, before the first update and after each of two."""
    alone, together = jobs
    (expected,) = (alone[0][one.name]["losses"] for one in _ALONE if one.model == case.model)
    mesh = case.strategy.mesh
    last = together[-mesh.tp * mesh.cp * mesh.dp :]
    seen = torch.tensor([each[case.name]["losses"] for each in last])
    means = seen.sum(0) if case.strategy.zero else seen.mean(0)
    means /= mesh.tp if case.strategy.zero else 1
    torch.testing.assert_close(means, torch.tensor(expected), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("line", ["tp=4", "tp=4 sp=1", "tp=2 recompute=full"])
@pytest.mark.parametrize("model", ["small", "small-llama"])
def test_local_tensors_call_what_the_simulator_infers(model: str, line: str) -> None:
    case = Case(model, f"{line} micro_batch=2 micro_batches=2")
    assert works_for(case)
    assert local_calls(case) == inferred(case)[0]


def test_nothing_is_reported_on_what_is_tuned() -> None:
    assert {case.model for case in TUNED}.isdisjoint({case.model for case in REPORTED})
    assert len(set(REPORTED)) == len(REPORTED) >= 24
    assert {case.ranks for case in REPORTED} == {2, 3, 4}


class _Hand(Clock):
    """A clock that a test moves."""

    now_ns = worked_ns = late_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def thread_time_ns(self) -> int:
        return self.worked_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9) + self.late_ns

    def work(self, time_ns: int) -> None:
        self.now_ns += time_ns
        self.worked_ns += time_ns


def test_a_device_hides_the_host_and_does_not_add_up_its_lateness() -> None:
    clock = _Hand()
    clock.late_ns = 700
    device = Device(clock)
    for _ in range(5):
        clock.work(300)
        device.run(1000)
        clock.work(200)
        device.run(500)
    assert device.finish() == 5 * 1500
    assert clock.now_ns == 5 * 1500 + 700
    device.run(1000)
    assert device.finish() == 5 * 1500 + 1000


def test_a_device_waits_for_what_the_host_waits_for() -> None:
    clock = _Hand()
    device = Device(clock)
    device.run(1000)
    device.finish()
    clock.now_ns += 5000  # blocked, in a collective
    device.run(100)
    assert device.finish() == 6100


def test_a_slow_host_does_not_delay_a_busy_device_but_an_idle_one() -> None:
    clock = _Hand()
    device = Device(clock)
    device.run(10_000)
    clock.work(3000)
    device.run(10)
    assert device.finish() == 10_010


def test_operators_are_measured_and_kept(tmp_path: Path) -> None:
    one = Operation.of(
        torch.ops.aten.mm.default, (torch.zeros(256, 256), torch.zeros(256, 256).t()), {}
    )
    counter = Operation.of(torch.ops.aten.add_.Tensor, (torch.zeros(1), torch.zeros(1)), {})
    outputs = ("tensor", (256, 256), (256, 1), "float32")
    assert not is_paceable(counter, ("tensor", (1,), (1,), "float32"))
    table = measure({one: outputs, counter: ("tensor", (1,), (1,), "float32")}, lambda _: None)
    assert set(table) == {one}
    assert table[one].time_ns > 0
    write_operators(tmp_path / "operators.json", table)
    assert read_operators(tmp_path / "operators.json") == table


def test_links_are_fitted_as_the_simulator_uses_them() -> None:
    """Times that the simulator says of a cluster give its constants back."""
    from hybrid_links import Fitted
    from hybrid_predict import cluster_of

    from byteprophet.simulate.costs.table import CostTable
    from byteprophet.simulate.operation.mesh import Mesh

    truth, rate_bps = Fitted(2e5, 4e5, 5e7), 500_000_000
    costs = CollectiveCosts(
        cluster_of(CostTable("test", ((64, 64, 64, 1e4),), 1e9), truth, rate_bps), Mesh(dp=4)
    )
    measured = []
    for ranks in (2, 4):
        for size in (1 << 19, 1 << 20, 1 << 22):
            for kind in CollectiveKind:
                if kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.REDUCE_SCATTER):
                    continue
                half = size / 2  # the simulator counts two bytes per element, and jobs have four
                transfer = (
                    costs.send(half, 0, 1)
                    if kind is CollectiveKind.SEND
                    else costs.transfer(kind, Group(1, ranks), half)
                )
                time_ns = round(transfer.latency_ns + transfer.size_bytes / costs.rate(transfer))
                begin = [0] * ranks
                measured.append(
                    [Measured(kind.value, ranks, size, [at], [time_ns]) for at in begin]
                )
    assert fit_links(measured) == pytest.approx(truth, rel=1e-3)
