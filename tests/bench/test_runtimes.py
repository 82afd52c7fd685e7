"""Runtimes beside BytePS: what they are told, their bound, and a real job that is replayed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from byteprophet.bench import Case, Plan, run_bench
from byteprophet.bench.case import WARMUP_ITERATIONS, all_reduce_case, warmup_of
from byteprophet.bench.result import bound_ns, paper_fields
from byteprophet.cli.main import run_cli
from byteprophet.errors import JobFailed, UserError
from byteprophet.graph.gloo_graph import build
from byteprophet.job import Job
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.network.namespaces import BURST_BYTES
from byteprophet.paced.check import expected_parameters, parameters_sha256
from byteprophet.replay import replay
from byteprophet.replay.predict import predict
from byteprophet.replay.what_if import Changes
from byteprophet.timeline.events import Events, Rows
from byteprophet.timeline.read_events import load_run
from byteprophet.timeline.tables import Kind
from byteprophet.workload import Tensor, Workload

from ..namespaces import why_not_permitted
from .test_execute import RATE_BPS, mixed_workload, write

MS = 1_000_000
CASE = Case("resnet50", "prophet", None)


@pytest.mark.job
def test_distributed_data_parallel_recorded_and_replayed(tmp_path: Path) -> None:
    workload = mixed_workload()
    case = all_reduce_case(
        Case(write(workload, tmp_path), "prophet", RATE_BPS), "ddp", {"bucket_cap_mb": 1}
    )
    plan = Plan((case,), iterations=6, rounds=1, record=True, idle_s=0.0)
    (row,) = run_bench(plan, tmp_path / "runs", RATE_BPS is not None, print)
    expected = parameters_sha256(expected_parameters(workload, 2, plan.updates))
    assert row["parameters_sha256"] == expected
    assert (row["runtime"], row["scheduler"], row["servers"]) == ("ddp", None, 0)
    assert row["settings"]["bucket_cap_mb"] == 1
    assert row["settings"]["gradient_as_bucket_view"] == 1
    assert row["iteration_ns"]["median"] >= row["bound_ns"]

    run = Path(row["run"])
    for events in load_run(run):
        assert events.whole
        last = events.rows[events.rows["iteration"] == plan.updates - 1]
        kinds = [Kind(kind) for kind in last["kind"].tolist()]
        for kind, count in (
            (Kind.ITERATION, 1),
            (Kind.FORWARD, len(workload.tensors)),
            (Kind.BACKWARD, len(workload.tensors)),
            (Kind.UPDATE, 1),
            (Kind.WAIT, 1),
        ):
            assert kinds.count(kind) == count
        collectives = last[last["kind"] == Kind.COLLECTIVE]
        assert collectives["size_bytes"].sum() == workload.size_bytes
        (wait,) = last[last["kind"] == Kind.WAIT]
        assert wait["begin_ns"] == collectives["begin_ns"].max()
        assert wait["end_ns"] == collectives["end_ns"].max()

    measured = measure_run(Run(run))
    assert isinstance(measured.job, Job)
    bucketed = [name for bucket in measured.job.strategy.buckets for name in bucket.parameters]
    assert sorted(bucketed) == sorted(measured.job.model.names)
    assert measured.job.model.size_bytes == workload.size_bytes
    assert measured.job.model.names == tuple(tensor.name for tensor in workload.tensors)
    replayed = replay(build(measured.job).graph)
    # Two ranks send each other half of everything, twice, in every iteration.
    assert replayed.link_bytes.sum() == 4 * measured.job.iterations * workload.size_bytes
    assert predict(measured, Changes()).error is not None


@pytest.mark.job
@pytest.mark.parametrize(
    ("runtime", "settings"), [("fsdp2", {"unit_bytes": 1 << 20}), ("wfbp", {})]
)
def test_opponents_train_the_same(runtime: str, settings: dict[str, int], tmp_path: Path) -> None:
    """Parameters are those of one process, to the bit: two ranks' sums have one order."""
    workload = mixed_workload()
    case = all_reduce_case(Case(write(workload, tmp_path), "prophet", RATE_BPS), runtime, settings)
    plan = Plan((case,), iterations=3, rounds=1, warmup_iterations=2, record=True, idle_s=0.0)
    (row,) = run_bench(plan, tmp_path / "runs", RATE_BPS is not None, print)
    expected = parameters_sha256(expected_parameters(workload, 2, plan.updates))
    assert row["parameters_sha256"] == expected
    assert (row["runtime"], row["scheduler"], row["servers"]) == (runtime, None, 0)
    assert settings.items() <= row["settings"].items()
    assert row["iteration_ns"]["median"] >= row["bound_ns"]
    assert "eq6_max_speedup" not in row
    for events in load_run(Path(row["run"])):
        last = events.rows[events.rows["iteration"] == plan.updates - 1]
        kinds = [Kind(kind) for kind in last["kind"].tolist()]
        assert kinds.count(Kind.BACKWARD) == len(workload.tensors)
        assert kinds.count(Kind.UPDATE) == 1
        gathers = kinds.count(Kind.COLLECTIVE) // 2 if runtime == "fsdp2" else 0
        assert kinds.count(Kind.WAIT) == 1 + gathers  # all gradients, and each unit's gather
    measured = measure_run(Run(Path(row["run"])))
    assert isinstance(measured.job, Job)
    assert measured.job.strategy.runtime == runtime
    assert measured.job.model.names == tuple(tensor.name for tensor in workload.tensors)
    assert measured.job.model.size_bytes == workload.size_bytes
    replayed = replay(build(measured.job).graph)
    # Shards are padded to whole elements.
    moved_bytes = 4 * measured.job.iterations * workload.size_bytes
    assert replayed.link_bytes.sum() == pytest.approx(moved_bytes, rel=1e-3)
    assert predict(measured, Changes()).error is not None


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("forward_ms", [1, 100, 10_000])
def test_the_papers_bounds(workers: int, forward_ms: int) -> None:
    """Each half of the all-reduce beside the pass that can hide it, or both behind backward."""
    ns = 1_000_000
    workload = Workload("one", 8, (Tensor("a", 24_000_000, forward_ms * ns, 2 * forward_ms * ns),))
    case = replace(all_reduce_case(CASE, "dear", {}), workers=workers, bandwidth_bps=10**9)
    forward_s, backward_s = forward_ms / 1e3, forward_ms / 500
    half_s = 24_000_000 * 8 * (workers - 1) / workers / 0.9564e9
    hidden_s = min(half_s, forward_s) + min(half_s, backward_s)
    fields = paper_fields(workload, case)
    shortest_s = forward_s + backward_s + 2 * half_s - hidden_s
    assert fields["eq7_ns"] == pytest.approx(1e9 * shortest_s, rel=1e-3)
    waits_s = forward_s + max(backward_s, 2 * half_s)
    assert fields["eq8_ns"] == pytest.approx(1e9 * waits_s, rel=1e-3)
    expected = workers * (forward_s + backward_s) / shortest_s
    assert fields["eq6_max_speedup"] == pytest.approx(expected, abs=1e-4)
    assert expected <= workers
    other = paper_fields(workload, replace(case, runtime="dear-planned"))
    assert other == {name: fields[name] for name in ("eq7_ns", "eq8_ns")}
    for without in (replace(case, bandwidth_bps=None), replace(CASE, bandwidth_bps=10**9)):
        assert paper_fields(workload, without) == {}


@pytest.mark.parametrize(
    ("runtime", "settings", "says"),
    [
        ("fastest", {}, "runtime 'fastest': choose one of byteps, ddp"),
        ("ddp", {"bucket_mb": 4}, "setting 'bucket_mb': ddp has only bucket_cap_mb, "),
        ("ddp", {"bucket_cap_mb": 0}, "setting bucket_cap_mb=0: must be from 1 to"),
        ("ddp", {"static_graph": 2}, "setting static_graph=2: must be from 0 to 1"),
    ],
)
def test_bad_runtimes_are_refused_before_anything_starts(
    runtime: str, settings: dict[str, int], says: str, tmp_path: Path
) -> None:
    case = all_reduce_case(CASE, runtime, settings)
    with pytest.raises(UserError, match=says):
        run_bench(Plan((case,), 2, 1), tmp_path / "runs", False, print)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_the_bound_of_all_reduce(workers: int) -> None:
    """One tensor: every rank sends 2 (P - 1) / P of it, after backward and before forward."""
    workload = Workload("one", 8, (Tensor("a", 24_000_000, 10_000_000, 20_000_000),))
    case = replace(all_reduce_case(CASE, "ddp", {}), workers=workers, bandwidth_bps=10**9)
    sent_ns = 24_000_000 * 2 * (workers - 1) / workers * 8 / 0.9564
    at_once_ns = BURST_BYTES * 8 if workers > 1 else 0  # behind the limiter, after a pause
    assert bound_ns(workload, case) == pytest.approx(30_000_000 + sent_ns - at_once_ns, abs=20)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--runtime", "ddp", "--schedulers", "p3"], "--schedulers belongs to --runtime byteps"),
        (["--runtime", "ddp", "--servers", "2"], "--servers belongs to --runtime byteps"),
        (["--runtime", "ddp", "--tune", "100"], "--tune belongs to --runtime byteps"),
        (["--runtime", "ddp", "--iterations", "2", "--rounds", "3"], "--rounds 3: must be from 1"),
        (["--runtime", "mpi"], "runtime 'mpi': choose one of byteps, ddp"),
        (["--runtime", "byteps,ddp", "--set", "a=1"], "--set: settings belong to one scheduler"),
    ],
)
def test_options_that_do_not_fit(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["bench", "--workload", "resnet18", *options]) == 2
    assert says in capsys.readouterr().err


def even_case(folder: Path, sync: str, settings: dict[str, int], ranks: int = 2) -> Case:
    """Three tensors, on links on which a half of each takes longer than a layer's passes."""
    tensors = tuple(Tensor(f"t{n}", 4_000_000, 5 * MS, 10 * MS) for n in range(3))
    path = write(Workload("even", 8, tensors), folder)
    return all_reduce_case(Case(path, "prophet", 800_000_000, workers=ranks), sync, settings)


needs_hosts = pytest.mark.skipif(
    bool(why_not_permitted()), reason="links and counters are of hosts of their own"
)


@pytest.mark.job
@needs_hosts
@pytest.mark.parametrize(("sync", "ranks"), [("dear-planned", 2), ("dear", 3), ("allreduce", 4)])
def test_a_wire_carries_no_more_than_an_all_reduce_must(
    tmp_path: Path, sync: str, ranks: int
) -> None:
    case = even_case(tmp_path, sync, {}, ranks)
    plan = Plan((case,), iterations=8, rounds=1, warmup_iterations=warmup_of([case]), idle_s=0.0)
    (row,) = run_bench(plan, tmp_path / "runs", True, print)
    least_bytes = 2 * (ranks - 1) / ranks * 12_000_000
    assert row["sent_bytes"] == pytest.approx(least_bytes, rel=0.05)
    assert row["received_bytes"] == pytest.approx(least_bytes, rel=0.05)


@pytest.mark.job
@needs_hosts
def test_halves_under_backward_and_under_forward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of DeAR, in what it records; what is exposed is printed."""
    case = even_case(tmp_path, "dear", {"bucket_bytes": 4_000_000})
    plan = Plan((case,), iterations=4, rounds=1, warmup_iterations=2, record=True, idle_s=0.0)
    (row,) = run_bench(plan, tmp_path / "runs", True, print)
    for events in load_run(Path(row["run"])):

        def of(iteration: int, kind: Kind, events: Events = events) -> Rows:
            rows = events.rows
            return rows[(rows["iteration"] == iteration) & (rows["kind"] == kind)]

        backward, forward = of(4, Kind.BACKWARD), of(5, Kind.FORWARD)
        halves = of(4, Kind.COLLECTIVE)
        names = [events.names[name].partition(" ")[0] for name in halves["name"].tolist()]
        assert sorted(names) == ["all-gather"] * 3 + ["reduce-scatter"] * 3
        reduced, gathered = (
            halves[[each == name for each in names]] for name in ("reduce-scatter", "all-gather")
        )
        assert halves["size_bytes"].tolist() == [4_000_000] * 6
        assert backward["begin_ns"].min() < reduced["begin_ns"].min() < backward["end_ns"].max()
        assert gathered["begin_ns"].min() >= backward["end_ns"].max()
        # Layers run as soon as their own parameters are there, while others are in flight.
        ends_ns = np.sort(gathered["end_ns"])
        assert ends_ns[0] <= forward["end_ns"].min() < ends_ns[-1] <= forward["end_ns"].max()
    capsys.readouterr()
    assert run_cli(["report", row["run"], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["breakdown"]
    exposed = found["parts"].index("communication")
    least_ns = row["bound_ns"] - 45 * MS  # what does not fit beside compute; some is others' delay
    assert all(worker[exposed] >= least_ns / 2 for worker in found["mean_ns"])


def test_warm_up_lasts_until_groups_stay() -> None:
    for runtime in ("ddp", "fsdp2", "wfbp"):
        assert warmup_of([all_reduce_case(CASE, runtime, {})]) == WARMUP_ITERATIONS
    planned = warmup_of([CASE, all_reduce_case(CASE, "dear", {})])
    searched = warmup_of([CASE, all_reduce_case(CASE, "dear", {"tune": 1})])
    assert warmup_of([CASE]) == WARMUP_ITERATIONS < planned < searched
    assert warmup_of([all_reduce_case(CASE, "dear", {"bucket_bytes": 1})]) == WARMUP_ITERATIONS


@pytest.mark.job
def test_groups_that_change_are_not_measured(tmp_path: Path) -> None:
    small = Workload("small", 4, (Tensor("a.weight", 400_004, 300_000, 300_000),))
    case = all_reduce_case(Case(write(small, tmp_path), "prophet", None), "dear-planned", {})
    with pytest.raises(JobFailed, match=r"worker-[01] ended with status 1"):
        run_bench(
            Plan((case,), iterations=12, rounds=1, idle_s=0.0), tmp_path / "runs", False, print
        )
    (log,) = (tmp_path / "runs").glob("*/logs/worker-0.log")
    assert "runtime 'dear-planned': the search for buckets did not end during" in log.read_text()
    options = ["--iterations", "2", "--rounds", "1", "--bandwidth", "unlimited"]
    out = tmp_path / "out.json"
    options += ["--runtime", "dear-planned,ddp", "--runs", str(tmp_path / "cli")]
    assert run_cli(["bench", "--workload", case.workload, *options, "--json", str(out)]) == 0
    planned, ddp = json.loads(out.read_text())["results"]
    assert planned["settings"]["updates"] == ddp["settings"]["updates"] == warmup_of([case]) + 2
    assert planned["parameters_sha256"] == ddp["parameters_sha256"]
