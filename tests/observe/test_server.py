"""Jobs whose servers record: every push of every worker, once, on the one clock."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from byteprophet.bench import Case, Plan, run_bench
from byteprophet.errors import UserError
from byteprophet.launcher import JobSpec, run_job
from byteprophet.launcher.leftovers import marked_processes
from byteprophet.launcher.spec import RoleCommands
from byteprophet.observe.observer import PERIOD_S
from byteprophet.observe.recording import VARIABLE
from byteprophet.observe.server import ServedRecording
from byteprophet.timeline.events import Events, events_path
from byteprophet.timeline.read_events import load_events, load_run
from byteprophet.timeline.tables import MESSAGES, SERVED_TABLE, TRANSFERS, Rows, TableKind
from byteprophet.workload import Tensor, Workload, to_toml

MS = 1_000_000
WORKERS, SERVERS = 2, 2
WORKLOAD = Workload(
    "stepped",
    16,
    tuple(
        Tensor(f"layer{n}.weight", 4 * (1000 + 9000 * (n % 4)), 3 * MS, 10 * MS, n // 4)
        for n in range(12)
    ),
)


def paced_run(directory: Path, scheduler: str, iterations: int) -> tuple[Path, int]:
    """The run directory of a recorded job under ``scheduler``, and how many updates it made."""
    workload = directory / "workload.toml"
    workload.write_text(to_toml(WORKLOAD), encoding="utf-8")
    case = Case(str(workload), scheduler, None, servers=SERVERS, partition_bytes=65536)
    plan = Plan((case,), iterations, rounds=1, warmup_iterations=1, record=True, idle_s=0.0)
    (row,) = run_bench(plan, directory / "runs", False, print)
    return Path(row["run"]), plan.updates


def of_table(run: Path, name: str) -> dict[int, Events]:
    """By rank."""
    return {one.origin.rank: one for one in load_run(run) if one.table.name == name}


def by_round(served: Events) -> dict[tuple[int, int, int], np.void]:
    """The rows of one server by key, worker and round; none is there twice."""
    rows = {(int(row["key"]), int(row["worker"]), int(row["round"])): row for row in served.rows}
    assert len(rows) == len(served.rows)
    return rows


def numbered(transfers: Rows) -> list[tuple[int, np.void]]:
    """Each transfer of one worker with its number among those of its key, from 1."""
    counts: dict[int, int] = {}
    result = []
    for row in transfers[np.argsort(transfers["sent_ns"], kind="stable")]:
        key = int(row["key"])
        counts[key] = counts.get(key, 0) + 1
        result.append((counts[key], row))
    return result


def check_order(row: np.void, *names: str) -> None:
    times = [int(row[f"{name}_ns"]) for name in names]
    assert times[0] > 0
    assert times == sorted(times)


def check_served(served: dict[int, Events]) -> None:
    """What holds under every scheduler."""
    assert sorted(served) == list(range(SERVERS))
    assert {one.origin.role for one in served.values()} == {"server-0", "server-1"}
    key_sets = []
    for one in served.values():
        assert one.whole
        assert one.lost == 0
        assert np.all(np.diff(one.rows["answered_ns"]) >= 0)
        rows = by_round(one)
        keys = {key for key, _, _ in rows}
        key_sets.append(keys)
        for key in keys:
            rounds = [{r for k, w, r in rows if (k, w) == (key, worker)} for worker in (0, 1)]
            assert rounds[0] == rounds[1] == set(range(1, len(rounds[0]) + 1))
        for row in one.rows:
            check_order(row, "arrived", "sum_begin", "sum_end", "answered")
            check_order(row, "asked", "answered")
        for key, worker, number in rows:
            # A sum has both pushes in it before either worker gets it.
            assert rows[key, worker, number]["answered_ns"] >= max(
                rows[key, other, number]["sum_end_ns"] for other in (0, 1)
            )
    assert not key_sets[0] & key_sets[1]


def check_joined(workers: dict[int, Events], served: dict[int, Events]) -> None:
    """Every transfer has its row where it says it went, and there are no other rows."""
    rows = {rank: by_round(one) for rank, one in served.items()}
    for worker in range(WORKERS):
        for number, sent in numbered(workers[worker].rows):
            row = rows[int(sent["server"])].pop((int(sent["key"]), worker, number))
            assert row["size_bytes"] == sent["size_bytes"]
            assert sent["sent_ns"] <= row["arrived_ns"] <= sent["acked_ns"]
            assert sent["sent_ns"] <= row["asked_ns"]
            assert row["answered_ns"] <= sent["pulled_ns"]
    assert all(not left for left in rows.values())


@pytest.mark.job
def test_every_transfer_is_found_at_its_server(tmp_path: Path) -> None:
    run, _ = paced_run(tmp_path, "prophet", 12)
    served = of_table(run, "served")
    check_served(served)
    check_joined(of_table(run, "transfers"), served)
    for one in served.values():
        for row in one.rows:
            # Both pushes are added up in one pass, which needs both (patch 0033).
            same = (one.rows["key"] == row["key"]) & (one.rows["round"] == row["round"])
            assert np.all(one.rows["sum_begin_ns"][same] == row["sum_begin_ns"])
            assert np.all(one.rows["arrived_ns"][same] <= row["sum_begin_ns"])


@pytest.mark.job
def test_stock_servers_record_too(tmp_path: Path) -> None:
    run, updates = paced_run(tmp_path, "stock", 3)  # its workers poll, which takes a processor
    served = of_table(run, "served")
    check_served(served)
    update_bytes = 0
    for one in served.values():
        rows = by_round(one)
        for (key, worker, number), row in rows.items():
            check_order(row, "arrived", "asked")  # pulls are requested after acknowledgements
            if (worker, number) == (0, updates):
                assert (key, worker, updates + 1) not in rows
                update_bytes += int(row["size_bytes"])
    assert update_bytes == sum(tensor.size_bytes for tensor in WORKLOAD.tensors)


class Library:
    """What a server has recorded and lost: two served and three messages before it joined."""

    def __init__(self) -> None:
        self.rank = -1
        self.lost = {SERVED_TABLE: 10, MESSAGES: 20}  # in an earlier life
        self._rows = dict.fromkeys((SERVED_TABLE, MESSAGES), 0)
        self.byteps_take_served = self._taker(SERVED_TABLE)
        self.byteps_take_messages = self._taker(MESSAGES)
        self.byteps_lost_served = lambda: self.lost[SERVED_TABLE]
        self.byteps_lost_messages = lambda: self.lost[MESSAGES]
        self.byteps_record_served = self.byteps_record_messages = lambda on: None
        self.byteps_server_rank = lambda: self.rank

    def make(self, table: TableKind, rows: int, lost: int) -> None:
        self._rows[table] += rows
        self.lost[table] += lost

    def _taker(self, table: TableKind) -> Callable[[int, int], int]:
        def take(address: int, _capacity: int) -> int:
            rows, self._rows[table] = self._rows[table], 0
            ctypes.memset(address, 0, rows * table.dtype.itemsize)
            return rows

        return take


def test_what_is_recorded_before_a_server_joins_is_its_own(tmp_path: Path) -> None:
    library = Library()
    library.make(MESSAGES, 4, 0)  # ended when the earlier life had ended
    recorder = ServedRecording(library, tmp_path, None)  # type: ignore[arg-type]
    recorder.start()
    library.make(SERVED_TABLE, 5, 2)
    library.make(MESSAGES, 6, 3)
    library.rank = 1
    recorder.close()
    for table, rows, lost in ((SERVED_TABLE, 5, 2), (MESSAGES, 6, 3)):
        events = load_events(events_path(tmp_path, table, "server-1"))
        assert events.whole
        assert (len(events.rows), events.lost) == (rows, lost)


_BEGIN = """
import torch
import byteps.torch as bps
bps.init()
tensors = {f"t{n}": torch.zeros(100_000 * (n + 1)) for n in range(4)}
for name in tensors:
    bps.declare(name)
def step():
    handles = [bps.byteps_push_pull(tensor, name=name) for name, tensor in tensors.items()]
    for handle in handles:
        bps.synchronize(handle)
"""
_ENDLESS = """
while True:
    step()
"""
_SUSPENDED = """
for _ in range(5):
    step()
bps.suspend()
bps.resume(bps.size(), 2, bps.rank())
for _ in range(3):
    step()
"""


def job_of(directory: Path, code: str) -> JobSpec:
    """A recorded job whose workers run ``code``."""
    return JobSpec(
        command=(sys.executable, "-c", _BEGIN + code),
        run_directory=directory / "run",
        directory=directory,
        workers=WORKERS,
        servers=SERVERS,
        partition_bytes=65536,
        environment={VARIABLE: "1"},
        timeout_s=150.0,
    )


@pytest.mark.job
def test_a_suspension_ends_one_file_and_begins_another(tmp_path: Path) -> None:
    spec = job_of(tmp_path, _SUSPENDED)
    assert run_job(spec).failed is None
    for life, steps in (("", 5), ("~2", 3)):
        paths = {
            table: [
                events_path(spec.run_directory, table, f"{kind}-{index}{life}")
                for index in range(count)
            ]
            for table, kind, count in (
                (SERVED_TABLE, "server", SERVERS),
                (TRANSFERS, "worker", WORKERS),
            )
        }
        loaded = {
            table.name: {one.origin.rank: one for one in map(load_events, of_one)}
            for table, of_one in paths.items()
        }
        check_served(loaded["served"])
        check_joined(loaded["transfers"], loaded["served"])
        for one in loaded["served"].values():
            assert one.rows["round"].max() == steps
    joined = load_run(spec.run_directory)
    assert len(joined) == 2 * WORKERS + 2 * SERVERS + WORKERS  # spans, of nothing
    served = of_table(spec.run_directory, "served")
    check_served(served)
    check_joined(of_table(spec.run_directory, "transfers"), served)


@pytest.mark.job
def test_a_server_that_cannot_save_serves_on(tmp_path: Path) -> None:
    in_the_way = (
        "import os, pathlib; pathlib.Path(os.environ['BYTEPROPHET_RUN'], 'events').touch(); "
        "import byteps.server"
    )
    spec = replace(
        job_of(tmp_path, "for _ in range(5): step()"),
        scheduler="stock",  # its workers save nothing
        roles=RoleCommands(server=(sys.executable, "-c", in_the_way)),
    )
    said: list[str] = []
    assert run_job(spec, lambda name, line: said.append(f"{name}: {line}")).failed is None
    where = f"{spec.run_directory / 'events'}: cannot be written: File exists"
    warnings = [line for line in said if f"this server stopped recording: {where}" in line]
    assert sorted(line.partition(":")[0] for line in warnings) == ["server-0", "server-1"]


class Killer(threading.Thread):
    """Kills server-1 once its file has so many rows. Before that, it stops server-0 for a while."""

    def __init__(self, run: Path) -> None:
        super().__init__(daemon=True)
        self._run = run
        self.seen = 0
        self.killed_ns = 0

    def run(self) -> None:
        path = events_path(self._run, SERVED_TABLE, "server-1")
        deadline_s = time.monotonic() + 100
        while self.seen < 2000 and time.monotonic() < deadline_s:
            time.sleep(0.1)
            try:
                self.seen = len(load_events(path).rows)
            except UserError:  # it is not there yet
                continue
        (stopped,), (killed,) = (
            marked_processes(str(self._run.absolute()), role) for role in ("server-0", "server-1")
        )
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(3 * PERIOD_S)
        os.kill(stopped, signal.SIGCONT)
        time.sleep(3 * PERIOD_S)
        self.killed_ns = time.monotonic_ns()
        os.kill(killed, signal.SIGKILL)


@pytest.mark.job
def test_a_killed_server_leaves_all_but_the_last_second(tmp_path: Path) -> None:
    spec = job_of(tmp_path, _ENDLESS)
    killer = Killer(spec.run_directory)
    killer.start()
    result = run_job(spec)
    killer.join()
    assert result.failed is not None
    assert result.failed.startswith("server-1 was killed by signal 9 (SIGKILL)")
    statuses = {role.name: role.exit_status for role in result.roles}
    assert statuses["server-0"] == -signal.SIGTERM

    killed = load_events(events_path(spec.run_directory, SERVED_TABLE, "server-1"))
    ended = load_events(events_path(spec.run_directory, SERVED_TABLE, "server-0"))
    assert not killed.whole
    assert len(killed.rows) >= killer.seen >= 2000
    assert ended.whole  # it was asked to end, by SIGTERM, while BytePS had the main thread
    by_rank = {one.origin.rank: (one, by_round(one)) for one in (killed, ended)}
    for worker, events in of_table(spec.run_directory, TRANSFERS.name).items():
        for number, sent in numbered(events.rows):
            server, rows = by_rank[int(sent["server"])]
            if (int(sent["key"]), worker, number) not in rows:
                # Nothing but the end is missing: where it was asked to end, what came while it did.
                assert sent["pulled_ns"] > server.rows["answered_ns"][-1]
                assert server is ended or sent["pulled_ns"] > killer.killed_ns - 1000 * MS


_JOB = {
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "9",
}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({VARIABLE: "yes"}, f"{VARIABLE}=yes: must be 0 or 1"),
        ({VARIABLE: "1"}, "BYTEPROPHET_RUN must name the directory"),
    ],
)
def test_a_wrong_wish_ends_the_server(environment: dict[str, str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import byteps.server"],
        env={"PATH": os.environ["PATH"], "DMLC_ROLE": "server", **_JOB, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("byteprophet: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
