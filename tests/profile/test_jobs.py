"""Real jobs, recorded and profiled: nothing is missing or twice, and the workload comes back."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from byteprophet.bench import Case, Plan, run_bench
from byteprophet.job.fused_file import read_fused
from byteprophet.launcher import JobSpec, run_job
from byteprophet.observe.recording import VARIABLE
from byteprophet.paced.busy import read_busy
from byteprophet.profile import read_profile
from byteprophet.profile.convert import to_workload
from byteprophet.runtime_settings import FUSION_BYTES
from byteprophet.timeline.events import Events
from byteprophet.timeline.read_events import load_rank
from byteprophet.timeline.tables import SPANS, TRANSFERS, Kind, tensor_of
from byteprophet.workload import Tensor, Workload, to_toml

PARTITION_BYTES = 65536
MS = 1_000_000


def stepped_workload() -> Workload:
    """12 tensors in 3 bursts, 40 ms apart: far more than a busy machine is late by."""
    tensors = [
        Tensor(f"layer{n}.weight", 4 * (1000 + 9000 * (n % 4)), 3 * MS, 10 * MS, n // 4)
        for n in range(12)
    ]
    return Workload("stepped", 16, tuple(tensors))


def write(workload: Workload, directory: Path) -> str:
    path = directory / "workload.toml"
    path.write_text(to_toml(workload), encoding="utf-8")
    return str(path)


def check_spans(spans: Events, workload: Workload, updates: int) -> None:
    """Every layer once in every iteration, in order, as long as stated, within the iteration."""
    assert (spans.whole, spans.lost) == (True, 0)
    begun = [0]
    for iteration in range(1, updates + 1):
        rows = spans.rows[spans.rows["iteration"] == iteration]
        for kind, tensors in (
            (Kind.FORWARD, workload.tensors),
            (Kind.BACKWARD, workload.tensors[::-1]),
        ):
            layers = rows[rows["kind"] == kind]
            assert [spans.names[n] for n in layers["name"].tolist()] == [t.name for t in tensors]
            stated = [t.forward_ns if kind == Kind.FORWARD else t.backward_ns for t in tensors]
            assert (layers["end_ns"] - layers["begin_ns"]).tolist() == stated
            assert np.all(layers["end_ns"][:-1] <= layers["begin_ns"][1:])
            assert layers["begin_ns"][0] >= begun[-1]
        whole = rows[rows["kind"] == Kind.ITERATION]
        assert len(whole) == (iteration < updates)  # no other begins after the last
        for row in whole:
            assert row["begin_ns"] >= begun[-1]
            assert row["begin_ns"] <= rows["begin_ns"][rows["kind"] == Kind.FORWARD].min()
            assert row["end_ns"] >= rows["end_ns"][rows["kind"] == Kind.BACKWARD].max()
            begun.append(int(row["end_ns"]))


@pytest.mark.job
def test_stock_records_spans(tmp_path: Path) -> None:
    workload = stepped_workload()
    case = Case(write(workload, tmp_path), "stock", None)
    plan = Plan((case,), iterations=4, rounds=1, record=True, idle_s=0.0)
    (row,) = run_bench(plan, tmp_path / "runs", False, print)
    for rank in range(2):
        spans = load_rank(Path(row["run"]), SPANS, rank)
        check_spans(spans, workload, plan.updates)
        waits = spans.rows[spans.rows["kind"] == Kind.WAIT]
        assert waits["iteration"].tolist() == list(range(1, plan.updates + 1))
        backward = spans.rows[spans.rows["kind"] == Kind.BACKWARD]
        for wait in waits:
            of_iteration = backward[backward["iteration"] == wait["iteration"]]
            assert of_iteration["end_ns"].max() <= wait["begin_ns"] <= wait["end_ns"]


@pytest.mark.job
@pytest.mark.parametrize("fusion_bytes", [0, 131072])
def test_every_partition_of_every_iteration_once(tmp_path: Path, fusion_bytes: int) -> None:
    workload = stepped_workload()
    case = Case(
        write(workload, tmp_path),
        "prophet",
        None,
        servers=2,
        partition_bytes=PARTITION_BYTES,
        environment={FUSION_BYTES: str(fusion_bytes)},
    )
    plan = Plan((case,), iterations=12, rounds=1, record=True, idle_s=0.0)
    (row,) = run_bench(plan, tmp_path / "runs", False, print)
    run = Path(row["run"])
    fused = read_fused(run)
    assert bool(fused.parameters) == (fusion_bytes > 0)
    alone = {tensor.name: tensor.size_bytes for tensor in workload.tensors}
    shared = {name: sum(alone[each] for each in held) for name, held in fused.parameters.items()}
    held = {each for several in fused.parameters.values() for each in several}
    shared |= {name: size for name, size in alone.items() if name not in held}
    for rank in range(2):
        recording = load_rank(run, TRANSFERS, rank)
        assert recording.origin.rank == rank
        transfers = recording.rows
        assert len(transfers) == row["scheduled_partitions"]
        gradients = transfers[transfers["priority"] < 0]
        assert set(gradients["iteration"].tolist()) == set(range(1, plan.updates + 1))
        for iteration in range(1, plan.updates + 1):
            sizes = alone if iteration < fused.since else shared
            partitions = sum(-(-size // PARTITION_BYTES) for size in sizes.values())
            of_iteration = gradients[gradients["iteration"] == iteration]
            of_model = np.isin(
                tensor_of(of_iteration),
                [n for n, name in recording.names.items() if name.startswith("layer")],
            )
            of_iteration = of_iteration[of_model]
            assert len(np.unique(of_iteration["key"])) == len(of_iteration) == partitions
            for tensor, size_bytes in sizes.items():
                mine = [n for n, name in recording.names.items() if name == tensor]
                sent = of_iteration[np.isin(tensor_of(of_iteration), mine)]
                assert sent["size_bytes"].sum() == size_bytes
        for before, after in (("ready", "sent"), ("sent", "acked"), ("sent", "pulled")):
            assert np.all(transfers[f"{before}_ns"] <= transfers[f"{after}_ns"])
        assert set(transfers["server"].tolist()) == {0, 1}
        spans = load_rank(run, SPANS, rank)
        check_spans(spans, workload, plan.updates)
        named = {spans.names[n] for n in spans.rows["name"][spans.rows["kind"] == Kind.UPDATE]}
        assert named >= {tensor.name for tensor in workload.tensors}  # from the second on, each
        computed_ns = sum(end - begin for begin, end in read_busy(run, rank))
        assert computed_ns == plan.updates * (workload.forward_ns + workload.backward_ns)

    profile = read_profile(run / "profile.json")
    assert [tensor.name for tensor in profile.tensors] == sorted(
        shared, key=lambda name: int(name.partition(".")[0].removeprefix("layer"))
    )
    if fused.parameters:
        assert profile.size_bytes == workload.size_bytes
        return
    back = to_workload(profile, "back")
    # Where cores are shared, one may come in two; none is ever of two.
    assert {burst.start for burst in back.bursts()} >= {burst.start for burst in workload.bursts()}
    assert [t.size_bytes for t in back.tensors] == [t.size_bytes for t in workload.tensors]
    assert back.batch_size == workload.batch_size
    # A paced job is never early; late it is where two cores are shared.
    for found_ns, stated_ns in (
        (back.forward_ns, workload.forward_ns),
        (back.backward_ns, workload.backward_ns),
        *zip(back.ready_ns(), workload.ready_ns(), strict=True),
    ):
        assert 0.9 * stated_ns < found_ns < 1.5 * stated_ns + 20 * MS
    assert read_profile(run / "profile-1.json").rank == 1


@pytest.mark.job
def test_follows_a_change_and_saves_when_ended_by_a_signal(tmp_path: Path) -> None:
    workload = stepped_workload()
    spec = JobSpec(
        command=(
            sys.executable,
            str(Path(__file__).with_name("changing_worker.py")),
            write(workload, tmp_path),
        ),
        run_directory=tmp_path / "run",
        environment={VARIABLE: "1"},
        timeout_s=200,
    )
    result = run_job(spec)
    assert result.failed is not None
    assert result.failed.startswith("worker-1 ended with status 3")
    profile = read_profile(spec.run_directory / "profile.json")
    assert profile.number >= 2
    assert profile.batch_size == 4
    assert profile.backward_ns < 0.7 * workload.backward_ns
    # Rank 0 was waiting for rank 1 when it was ended.
    end = int((spec.run_directory / "end").read_text())
    recording = load_rank(spec.run_directory, TRANSFERS, 0)
    complete = recording.rows["iteration"].tolist()
    assert set(range(1, end)) <= set(complete) <= set(range(end + 2))
