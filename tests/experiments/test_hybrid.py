"""experiments/hybrid.py: what ranks call is what the simulator infers, and they train as one does.

A job of four real ranks trains small models under five strategies. Nothing here depends on time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hybrid
import pytest
import torch
import torch.distributed as dist
from hybrid_beside import Beside, Lost, lost_of
from hybrid_cases import CHECKED, ELEMENT_BYTES, REPORTED, TUNED, TUNED_OWN, Case
from hybrid_device import Device, Operation, Paced, Watch, is_paceable
from hybrid_links import Alone, Measured, times_of
from hybrid_local import local_calls, works_for
from hybrid_operators import (
    Turn,
    as_rows,
    fastest,
    numbers_from,
    read_operators,
    table_of,
    write_operators,
)
from hybrid_predict import (
    Ran,
    called,
    cluster_of,
    inferred,
    own_slowdown,
    predicted_ns,
    slowed,
)
from hybrid_worker import Config
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_reduce
from torch.testing._internal.distributed.fake_pg import FakeStore

from byteprophet.errors import UserError
from byteprophet.launcher import JobSpec, run_job
from byteprophet.network import PAYLOAD_SHARE
from byteprophet.paced.pacing import Clock
from byteprophet.report.console import table_console
from byteprophet.simulate.clusters.constants import with_constants
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.collectives import OneCollective
from byteprophet.simulate.costs.table import CostTable
from byteprophet.simulate.execute.simulate import block_costs
from byteprophet.simulate.execute.workload import workload_of

from ..thorough import pairs

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


@pytest.mark.parametrize(
    ("model", "line"),
    pairs(("small", "small-llama"), ("tp=4", "tp=4 sp=1", "tp=2 recompute=full")),
)
def test_local_tensors_call_what_the_simulator_infers(model: str, line: str) -> None:
    case = Case(model, f"{line} micro_batch=2 micro_batches=2")
    assert works_for(case)
    assert local_calls(case) == inferred(case)[0]


def test_nothing_is_reported_on_what_is_tuned() -> None:
    assert {case.model for case in (*TUNED, *TUNED_OWN)}.isdisjoint(
        {case.model for case in REPORTED}
    )
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
    called = {one: outputs, counter: ("tensor", (1,), (1,), "float32")}
    times_ns = (2 * 10**6, 10**6, 3 * 10**6, 10)
    ranks = [as_rows(called, dict.fromkeys(called, time_ns)) for time_ns in times_ns]
    table = table_of(json.loads(json.dumps(ranks[:3])))
    assert table == {one: Paced(10**6, outputs)}
    assert table_of(ranks) == {}  # is too short to be paced
    slower = {one: Paced(2 * 10**6, outputs)}
    assert fastest([slower, table]) == fastest([table, slower]) == table
    write_operators(tmp_path / "operators.json", table)
    assert read_operators(tmp_path / "operators.json") == table


def test_operators_take_turns(tmp_path: Path) -> None:
    """Two ranks, each of which opens the file, as processes do."""
    inside: list[int] = []

    class _Seen(Turn):
        def __enter__(self) -> None:
            super().__enter__()
            inside.append(1)
            time.sleep(1e-4)  # lets the other rank run
            assert len(inside) == 1

        def __exit__(self, *what: object) -> None:
            inside.pop()
            super().__exit__(*what)

    def rank() -> Watch:
        given = torch.zeros(64, 64)
        with Watch({}, turn=_Seen(tmp_path / "turn")) as watch:
            for _ in range(100):
                given @ given
        return watch

    with ThreadPoolExecutor(2) as threads:
        watches = [each.result() for each in [threads.submit(rank) for _ in range(2)]]
    for watch in watches:
        ((times_ns),) = watch.times_ns.values()
        assert len(times_ns) == 100
        assert min(times_ns) > 0


@pytest.fixture
def alone() -> Iterator[dist.ProcessGroup]:
    """A process group whose other rank does not exist."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        assert dist.group.WORLD is not None
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def test_an_operator_that_waits_for_a_collective_is_paced(alone: dist.ProcessGroup) -> None:
    given, clock = torch.ones(64, 64), _Hand()
    watch = Watch({str(alone.group_name): "tp"})
    with watch:
        made = all_reduce(given, "sum", alone)
        assert isinstance(made, AsyncCollectiveTensor)
        made + given
    (operation,) = watch.operations
    assert operation.name == "aten.add.Tensor"
    assert watch.counts == {operation: 1}
    assert watch.calls == {("all-reduce", "tp", given.nbytes): 1}
    device = Device(clock)
    with Watch({}, device, {operation: Paced(7000, watch.operations[operation])}):
        all_reduce(given, "sum", alone) + given
    assert device.busy_ns == device.finish() == 7000


def test_copies_of_fsdp2_are_paced_and_give_the_same_views() -> None:
    parts, buffer = [torch.ones(1200), torch.ones(2000)], torch.zeros(6400)
    sizes = [len(part) for part in parts]

    def copy() -> tuple[torch.Tensor, torch.Tensor]:
        made: tuple[torch.Tensor, torch.Tensor] = torch.ops.fsdp.all_gather_copy_in(
            parts, buffer, sizes, sum(sizes), 1
        )
        return made

    watch = Watch({})
    with watch:
        real = copy()
        torch.ops.fsdp.chunk_cat(parts, dim=0, num_chunks=2, out=torch.zeros(2, 1600))
        out = [torch.zeros(2, size) for size in sizes]
        torch.ops.fsdp.split_with_sizes_copy(buffer.view(2, -1), sizes, dim=1, out=out)
    assert len(watch.operations) == 3
    assert all(is_paceable(*each) for each in watch.operations.items())
    device = Device(_Hand())
    with Watch({}, device, {one: Paced(10, made) for one, made in watch.operations.items()}):
        buffer.zero_()
        paced = copy()
    assert device.busy_ns == 10
    assert not buffer.any()
    assert [each.data_ptr() for each in paced] == [each.data_ptr() for each in real]
    assert [each.shape for each in paced] == [each.shape for each in real]


def test_operators_are_counted(tmp_path: Path) -> None:
    watch = Watch({})
    with watch:
        for _ in range(3):
            torch.zeros(64, 64) @ torch.zeros(64, 64)
    rows = json.loads(json.dumps(as_rows(watch.operations, watch.counts)))
    assert numbers_from(rows) == watch.counts
    assert list(watch.counts.values()) == [3]


_RATE_BPS = 500_000_000
_COSTS = CostTable("test", ((64, 64, 64, 1e4),), 1e9)
_KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.SEND,
)


def test_links_are_fitted_as_the_simulator_uses_them() -> None:
    """Times that the simulator says of a cluster give its constants back."""
    constants = {"node.base_ns": 2e5, "network.step_ns": 4e5, "network.efficiency": 0.8}
    truth = with_constants(cluster_of(_COSTS, (), _RATE_BPS), constants)
    times = [
        # The simulator counts two bytes per element, and jobs have four.
        Alone(OneCollective(kind, ranks, size), OneCollective(kind, ranks, size / 2).time_ns(truth))
        for kind in _KINDS
        for ranks in ((2,) if kind is CollectiveKind.SEND else (2, 3, 4))
        for size in (1 << 19, 1 << 20, 1 << 21, 1 << 22, 1 << 23)
    ]
    found = cluster_of(_COSTS, times, _RATE_BPS)
    assert found.node.base_ns == pytest.approx(2e5, rel=0.1)
    assert found.network.step_ns == pytest.approx(4e5, rel=0.05)
    assert found.network.efficiency == pytest.approx(0.8, rel=0.01)


def test_all_costs_of_a_slower_core_are_slower() -> None:
    table = CostTable(
        source="a core",
        products=((64, 64, 64, 100.0),),
        memory_bytes_per_s=6e9,
        attention_flops_per_s=6e9,
        launch_ns=100.0,
        node_bytes_per_s=6e9,
        node_latency_ns=100.0,
        update_bytes_per_s=6e9,
        collectives=(("all-reduce", 2, 1024, 100.0),),
        operators=(("loss", "forward", 8, 8, 100.0),),
        attention=(("forward", "full", 1, 1, 8, 8, 100.0),),
        convolutions=(("forward", 1, 1, 1, 1, 1, 8, 100.0),),
        unaligned=(("forward", 8, 8, 8, 100.0),),
        transposed=(("forward", 8, 8, 8, 100.0),),
    )
    assert all(getattr(table, field.name) for field in fields(CostTable))  # also of later ones
    slower = slowed(table, 3)
    links = ("source", "node_bytes_per_s", "node_latency_ns", "collectives")
    for field in fields(CostTable):
        cost, slow = getattr(table, field.name), getattr(slower, field.name)
        if field.name in links:
            assert slow == cost
        elif isinstance(cost, tuple):
            assert slow == tuple((*row[:-1], 3 * row[-1]) for row in cost)
        else:
            assert slow == (cost / 3 if field.name.endswith("per_s") else 3 * cost)


def test_a_collective_is_predicted_as_it_was_measured() -> None:
    """Also one that takes longer than the model can say."""
    times = [
        Alone(
            OneCollective(kind, 2, 1 << 20),
            5e8 if kind is CollectiveKind.REDUCE_SCATTER else 3e8,
        )
        for kind in _KINDS
    ]
    found = cluster_of(_COSTS, times, _RATE_BPS)
    for one in times:
        halved = replace(one.program, size_bytes=one.program.size_bytes / 2)
        assert halved.time_ns(found) == pytest.approx(one.measured_ns, rel=1e-3)


def test_the_time_of_a_collective_is_from_the_last_begin_to_the_last_end() -> None:
    ways = ("DTensor", "torch.distributed")
    measured = [
        [
            Measured("all-reduce", way, 2, 64, [0, 10, 20], [30, 40 + late, 50])
            for late in (0, 10 * (way == ways[0]))
        ]
        for way in ways
    ]
    (found,) = times_of(measured)
    assert found == Alone(OneCollective(CollectiveKind.ALL_REDUCE, 2, 64), 30.0)


def test_an_all_gather_of_two_ranks_counts_both_of_its_times() -> None:
    """It takes one of two times, by chance. All-gathers of more ranks have one time."""
    for ranks, times_ns in ((2, (35.0, 30.0)), (3, (30.0,))):
        ran = Measured("all-gather", "DTensor", ranks, 64, [0, 100, 200, 300], [30, 130, 240, 340])
        (found,) = times_of([[ran, ran]])
        assert found == Alone(OneCollective(CollectiveKind.ALL_GATHER, ranks, 64), *times_ns)


def test_our_own_runtime_is_predicted_between_what_its_link_and_its_ranks_need() -> None:
    case = Case("small", "dp=2 runtime=dear-planned micro_batch=4")
    size_bytes = ELEMENT_BYTES * case.program.model.parameters()
    found_ns = []
    for rate_bps in (100_000, 10_000_000_000):
        cluster = cluster_of(_COSTS, (), rate_bps)
        workload = workload_of(case.program, block_costs(case.program, cluster))
        computes_ns = workload.forward_ns + workload.backward_ns
        # Each of two ranks sends half of all gradients, and half of all parameters.
        sends_ns = size_bytes * 8e9 / (PAYLOAD_SHARE * rate_bps)
        found_ns.append(predicted_ns(case, cluster, 1))
        assert max(computes_ns, sends_ns) <= found_ns[-1] <= computes_ns + sends_ns + 20e6
    assert found_ns[0] > 10 * found_ns[1]


def test_a_job_that_computes_is_slowed_while_its_link_is_busy() -> None:
    """Our own runtime by the link's share of the time, PyTorch's only beside collectives."""
    lost = Lost(0.0, overlap=1.5, collective=0.5)
    for line in ("dp=2 micro_batch=6", "dp=2 runtime=dear-planned micro_batch=6"):
        case = Case("gpt", line)
        free_ns, slowed_ns = (
            predicted_ns(case, cluster_of(_COSTS, (), _RATE_BPS, lost=each), 1)
            for each in (None, lost)
        )
        assert free_ns < slowed_ns < 2.5 * free_ns


def test_what_our_own_exchange_takes_is_found_again_in_a_job_that_computes() -> None:
    case = Case("small", "dp=2 runtime=dear-planned micro_batch=4")
    cluster = cluster_of(_COSTS, (), 10_000_000_000)
    found = own_slowdown(Ran(case, case.program, predicted_ns(case, cluster, 1, 0.7)), cluster)
    assert predicted_ns(case, cluster, 1, found) == pytest.approx(
        predicted_ns(case, cluster, 1, 0.7), rel=1e-3
    )
    assert own_slowdown(Ran(case, case.program, 1.0), cluster) == 0.0


def test_what_is_lost_is_compared_with_what_takes_least_of_it() -> None:
    one = Beside([10, 20], [20, 20], [50, 30], [100], [150])
    other = Beside([10], [30], [60], [100], [150])
    assert lost_of([one, other]) == pytest.approx(Lost(1.5, 1.0, 0.5))
    assert lost_of([Beside([10], [10], [9], [9], [8])]) == Lost(0.0, 0.0, 0.0)


def test_times_are_kept_for_jobs_of_the_same_pace_and_length_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of 1 Gbit/s is 500 Mbit/s: times of jobs that were slowed were taken for others'."""
    case, ran = REPORTED[0], []

    def run(_jobs: hybrid._Jobs, config: Config, _ranks: int, _label: str) -> list[dict[str, Any]]:
        ran.append((config.slowed, config.iterations))
        return [{case.name: ran[-1]}]

    monkeypatch.setattr(hybrid._Jobs, "_run", run)
    monkeypatch.setattr(hybrid._Jobs, "operators", lambda *_: tmp_path)
    wanted = [(7, 1_000_000_000, 2), (7, 500_000_000, 1), (9, 500_000_000, 1)]
    for iterations, rate_bps, slowed_by in wanted * 2:
        jobs = hybrid._Jobs(tmp_path, iterations, rate_bps, slowed_by, paced=True)
        assert jobs.timed(case, [case]) == [[slowed_by, iterations]]
    assert ran == [(2, 7), (1, 7), (1, 9)]


@pytest.mark.job
@pytest.mark.timeout(300)
def test_our_own_runtime_trains_as_one_process_does(tmp_path: Path, jobs: Any) -> None:
    case = Case("small", "dp=2 runtime=dear-planned micro_batch=4")
    together = _run(tmp_path / "two", [case], 2)
    expected = jobs[0][0][_ALONE[0].name]["losses"]
    seen = torch.tensor([each[case.name]["losses"] for each in together]).mean(0)
    torch.testing.assert_close(seen, torch.tensor(expected), rtol=1e-3, atol=1e-4)


def test_tables_without_rows_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs of our own runtime are in neither table: one said "mean error nan%", one "0 of 0"."""
    cases = [case for case in REPORTED if case.runtime]
    jobs: Any = SimpleNamespace(
        paced_operators=lambda _: {}, costs=lambda _: _COSTS, rate_bps=_RATE_BPS
    )
    tables = [hybrid._operators(jobs, cases), hybrid._lists({case: [] for case in cases})]
    assert tables[0].caption is None
    for table in tables:
        hybrid._print(table_console(), table)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("only", ["--lists", "--operators"])
def test_tables_without_jobs_are_refused(only: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such job"):
        hybrid.main(["--cases", "runtime", only, "--out", str(tmp_path)])
