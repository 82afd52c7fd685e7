"""What ranks used of shared cores, from their files: a byte's part, machines, and refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byteprophet.cli.main import run_cli
from byteprophet.diagnose.diagnosis import diagnose
from byteprophet.errors import UserError
from byteprophet.job import Job, Processors
from byteprophet.job.strategy import ALL_REDUCE, DDP
from byteprophet.job.strategy_file import Used, write_strategy
from byteprophet.measure.processor_file import (
    MESSAGE_NS,
    SOFT_NS_PER_BYTE,
    measure_on_cores,
    measured_use,
    message_ns_of,
)
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.network.rate import PAYLOAD_SHARE
from byteprophet.replay.predict import predict
from byteprophet.replay.what_if import Changes
from byteprophet.timeline.events import EventWriter, events_path
from byteprophet.timeline.tables import SPANS, Kind

from .recorded_gloo import record as record_gloo
from .recorded_replay import record as record_served
from .test_barriered import a_ring
from .test_processors import EPOCH_NS, NS_PER_BYTE, on_cores, record
from .test_servers import a_job


def written(directory: Path, job: Job, cores: Sequence[Sequence[int]], share: float = 1.0) -> Run:
    """A run directory of ``job``; ``cores``: those of each rank. ``share``: of what they computed.

    Ranks used what the job says: computing in the training thread, updates and messages in others.
    """
    directory.mkdir()
    (directory / "config.toml").write_text(
        "schema = 1\nworkers = 2\nservers = 0\nlocal_ranks = 1\n"
        f"bandwidth_bps = {round(job.cluster.workers[0].up_bps / PAYLOAD_SHARE)}\n"
    )
    write_strategy(directory / "strategy.json", Used(job.model, job.strategy, 1))
    times = job.times
    passed_bytes = 2 * job.model.size_bytes // 2
    for rank, events in enumerate(record(job)):
        path = events_path(directory, SPANS, f"worker-{rank}")
        with_rank = EventWriter(path, SPANS, events.origin)
        with_rank.write(events.rows, dict(events.names))
        with_rank.close()
        begins = events.rows[events.rows["kind"] == Kind.ITERATION]
        times_ns = np.append(begins["begin_ns"], begins["end_ns"][-1]).tolist()
        trained_ns = times.forward_ns[rank].sum(axis=1) + times.backward_ns[rank]
        others_ns = times.update_ns[rank].sum(axis=1) + NS_PER_BYTE * passed_bytes
        trained = np.append(0, np.cumsum(share * trained_ns)).astype(int)
        process = trained + np.append(0, np.cumsum(others_ns)).astype(int)
        rows = zip(range(1, len(times_ns) + 1), times_ns, trained, process, strict=True)
        save(directory, rank, cores[rank], [[*map(int, row)] for row in rows])
    return Run(directory)


def save(
    directory: Path,
    rank: int,
    cores: Sequence[int],
    rows: Any,
    others: dict[str, Any] | None = None,
) -> Path:
    path = directory / "processors" / f"worker-{rank}.json"
    path.parent.mkdir(exist_ok=True)
    data = {
        "schema": 1,
        "role": f"worker-{rank}",
        "rank": rank,
        "machine": "here",
        "cores": list(cores),
        "iterations": rows,
        **(others or {}),
    }
    path.write_text(json.dumps(data))
    return path


def test_what_carried_messages_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, use = on_cores(2)
    run = written(tmp_path / "run", job, [[0, 1], [0, 1]])
    found = measured_use(run, measure_run(run))
    assert found is not None
    assert found.machines == use.machines
    assert found.ns_per_byte == pytest.approx(NS_PER_BYTE, rel=0.1)
    measured = measure_on_cores(run)
    assert measured.job.cluster.processors == use.machines
    assert measured.job.cluster.costs.host_ns_per_byte == 0
    # Reports and strategies speak of the same replay as ``byteprophet replay``.
    replay = predict(measured, Changes())
    replayed_ns = replay.median_ns
    assert replayed_ns != predict(measure_run(run), Changes()).median_ns
    told = diagnose(run).prediction
    assert told is not None
    assert told.median_ns == replayed_ns
    file = str(run.directory / "strategy.json")
    assert run_cli(["strategy", "explain", file, str(run.directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replay_error"] == replay.replay_error


def test_messages_of_gloo_take_what_was_measured_at_most() -> None:
    job, _ = on_cores(2)
    buckets = job.strategy.buckets
    ours = replace(job, strategy=replace(job.strategy, runtime=ALL_REDUCE))
    assert message_ns_of(ours) == 0
    gloo = replace(job, strategy=replace(job.strategy, runtime=DDP))
    assert message_ns_of(gloo) == MESSAGE_NS
    # Each of two ranks sends two messages per bucket, and all took 8 us per bucket together.
    assert message_ns_of(gloo, 8000.0 * len(buckets)) == 2000


@pytest.mark.parametrize("limited", [True, False])
def test_soft_interrupts_count_for_gloo_on_limited_links(tmp_path: Path, limited: bool) -> None:
    """Two ranks. What carried messages used is what they and their bytes cost, and no more."""
    job = a_ring(2)
    machine = Processors((0, 1), 2)
    costs = replace(
        job.cluster.costs, processor_ns_per_byte=NS_PER_BYTE, message_processor_ns=MESSAGE_NS
    )
    job = replace(job, cluster=replace(job.cluster, costs=costs, processors=(machine,)))
    rate_bps = round(job.cluster.workers[0].up_bps / PAYLOAD_SHARE)
    (tmp_path / "config.toml").write_text(
        "schema = 1\nworkers = 2\nservers = 0\nlocal_ranks = 1\n"
        + f"bandwidth_bps = {rate_bps}\n" * limited
    )
    write_strategy(tmp_path / "strategy.json", Used(job.model, job.strategy, 1))
    messages = 2 * len(job.strategy.buckets)
    others_ns = NS_PER_BYTE * job.model.size_bytes + messages * MESSAGE_NS
    times = job.times
    computed_ns = (times.forward_ns + times.update_ns).sum(axis=2) + times.backward_ns
    for rank, events in enumerate(record_gloo(job)):
        writer = EventWriter(events_path(tmp_path, SPANS, f"worker-{rank}"), SPANS, events.origin)
        writer.write(events.rows, dict(events.names))
        writer.close()
        begins = events.rows[events.rows["kind"] == Kind.ITERATION]
        times_ns = np.append(begins["begin_ns"], begins["end_ns"][-1]).tolist()
        trained = np.append(0, np.cumsum(computed_ns[rank]))
        process = trained + (others_ns * np.arange(len(trained))).astype(int)
        rows = zip(range(1, len(times_ns) + 1), times_ns, trained, process, strict=True)
        save(tmp_path, rank, [0, 1], [[*map(int, row)] for row in rows])
    run = Run(tmp_path)
    found = measured_use(run, measure_run(run))
    assert found is not None
    assert found.message_ns == MESSAGE_NS
    assert found.ns_per_byte == pytest.approx(NS_PER_BYTE + SOFT_NS_PER_BYTE * limited, rel=1e-3)


def with_servers(
    directory: Path, cores: Sequence[Sequence[int]], machines: Sequence[str] = ("here",)
) -> Run:
    """A run directory of three workers, and a server on each of ``machines``.

    Workers are on these machines in turn. What a worker's end of messages took is ``NS_PER_BYTE``,
    pushed and answered.
    """
    job = a_job("fifo", len(machines))
    directory.mkdir()
    (directory / "config.toml").write_text(
        f"schema = 1\nworkers = 3\nservers = {job.servers}\nlocal_ranks = 1\n"
        f'scheduler = "fifo"\npartition_bytes = {job.strategy.partition_bytes}\n'
        f"[settings]\npartition_bytes = {job.strategy.partition_bytes}\n"
    )
    recorded, _, _ = record_served(job)
    clock = recorded[0].origin
    for events in recorded:
        machine = machines[events.origin.rank % len(machines)]
        origin = replace(clock, role=events.origin.role, rank=events.origin.rank, machine=machine)
        path = events_path(directory, events.table, origin.role)
        writer = EventWriter(path, events.table, origin)
        writer.write(events.rows, dict(events.names))
        writer.close()
        if events.table is not SPANS:
            continue
        rank, times = events.origin.rank, job.times
        begins = events.rows[events.rows["kind"] == Kind.ITERATION]
        trained_ns = times.forward_ns[rank].sum(axis=1) + times.backward_ns[rank]
        passed_ns = NS_PER_BYTE * 2 * job.model.size_bytes
        others_ns = times.update_ns[rank].sum(axis=1) + passed_ns
        trained = np.append(0, np.cumsum(trained_ns))
        process = trained + np.append(0, np.cumsum(others_ns)).astype(int)
        times_ns = np.append(begins["begin_ns"], begins["end_ns"][-1]).tolist()
        rows = zip(range(1, len(times_ns) + 1), times_ns, trained, process, strict=True)
        save(directory, rank, cores[rank], [[*map(int, row)] for row in rows], {"machine": machine})
    return Run(directory)


def test_a_server_shares_the_cores_of_its_workers(tmp_path: Path) -> None:
    run = with_servers(tmp_path / "run", [[0, 1]] * 3)
    found = measured_use(run, measure_run(run))
    assert found is not None
    assert found.machines == (Processors((0, 1, 2), 2, (0,)),)
    # docs/processor.md: 0.26 s at the server beside 0.40 s at workers, per GB.
    assert found.ns_per_byte == pytest.approx(NS_PER_BYTE * (1 + 0.26 / 0.40), rel=0.1)
    cluster = measure_on_cores(run).job.cluster
    assert cluster.processors == found.machines
    assert cluster.costs.processor_ns_per_byte == found.ns_per_byte


def test_a_server_shares_the_cores_of_its_own_machine(tmp_path: Path) -> None:
    """All events are aligned to the clock of the first server's machine."""
    run = with_servers(tmp_path / "run", [[0, 1]] * 3, ["one", "other"])
    assert len(run.aligned.machines) == 2
    found = measured_use(run, measure_run(run))
    assert found is not None
    assert found.machines == (Processors((1,), 2, (1,)), Processors((0, 2), 2, (0,)))


def test_the_cores_of_a_server_of_pinned_workers_are_not_known(tmp_path: Path) -> None:
    run = with_servers(tmp_path / "run", [[0], [1], [2]])
    found = measured_use(run, measure_run(run))
    assert found is not None
    assert [machine.servers for machine in found.machines] == [()] * 3
    assert found.ns_per_byte == pytest.approx(NS_PER_BYTE, rel=0.1)


def test_pinned_ranks_share_nothing(tmp_path: Path) -> None:
    job, _ = on_cores(2)
    run = written(tmp_path / "run", job, [[3], [7]])
    found = measured_use(run, measure_run(run))
    assert found is not None
    assert found.machines == (Processors((0,), 1), Processors((1,), 1))


@pytest.mark.parametrize(
    ("cores", "share"), [([*range(8)], 1.0), ([0, 1], 0.1)], ids=["enough cores", "paced"]
)
def test_nothing_is_to_be_known(tmp_path: Path, cores: list[int], share: float) -> None:
    job, _ = on_cores(8)
    run = written(tmp_path / "run", job, [cores, cores], share)
    assert measured_use(run, measure_run(run)) is None
    assert measure_on_cores(run).job.cluster.processors == ()


def test_without_files_nothing_is_known(tmp_path: Path) -> None:
    job, _ = on_cores(2)
    run = written(tmp_path / "run", job, [[0, 1], [0, 1]])
    (run.directory / "processors" / "worker-1.json").unlink()
    assert measured_use(run, measure_run(run)) is None


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({"schema": 2}, "schema: must be 1"),
        ({"rank": "0"}, "must have a rank and a machine"),
        ({"cores": []}, "cores: must be a list"),
        ({"cores": ["x"]}, "cores: must be a list"),
        ({"iterations": [[1, 2, 3]]}, "iterations: each must have"),
        ({"iterations": [[1, 2, 3, -4]]}, "iterations: each must have"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, others: dict[str, Any], says: str) -> None:
    job, _ = on_cores(2)
    run = written(tmp_path / "run", job, [[0, 1], [0, 1]])
    path = save(run.directory, 0, [0, 1], [[1, EPOCH_NS, 0, 0]], others)
    with pytest.raises(UserError, match=f"{path.name}: {says}"):
        measured_use(run, measure_run(run))
