"""States of run directories: new, running, ended, damaged."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from byteprophet.errors import UserError
from byteprophet.network.namespaces import BURST_BYTES
from byteprophet.observe.live import ASKED
from byteprophet.observe.newest_run import newest_run
from byteprophet.watch.metrics import metrics_text
from byteprophet.watch.run_watch import RunWatch

from .hand_made import (
    MS_NS,
    end_run,
    event,
    link,
    make_run,
    plan,
    status,
    write_status,
)
from .test_terminal import text_of

FIELDS = {
    "schema": int, "run": str, "unix_s": float, "status": str, "failed": (str, type(None)),
    "silent_s": (float, type(None)), "facts": dict, "iteration": dict, "workers": list,
    "straggler": (str, type(None)), "plans": dict, "tuning": (dict, type(None)), "warnings": dict,
    "happened": list, "roles": list, "problems": list,
}  # fmt: skip


def check(state: dict[str, Any]) -> dict[str, Any]:
    """A state has its fields, and JSON holds it."""
    assert {name: type(value) for name, value in state.items()}.keys() == FIELDS.keys()
    for name, kind in FIELDS.items():
        assert isinstance(state[name], kind), name  # type: ignore[arg-type]
    assert json.loads(json.dumps(state, allow_nan=False)) == state
    return state


class Clock:
    def __init__(self) -> None:
        self.now_s = 1.0

    def __call__(self) -> float:
        return self.now_s


def test_a_run_that_has_just_started_is_asked(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    state = check(RunWatch(run).look())
    assert (run / "live" / ASKED).exists()
    assert state["run"] == "run"
    assert state["facts"]["scheduler"] == "prophet"
    assert state["facts"]["command"] == "python train.py"
    assert state["workers"] == []
    assert [role["name"] for role in state["roles"]] == [
        "scheduler", "server-0", "worker-0", "worker-1",
    ]  # fmt: skip
    assert state["problems"] == []
    assert state["iteration"]["bound_why"] == "there is no profile yet"


def test_figures_of_a_running_job_change(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    clock = Clock()
    watch = RunWatch(run, clock)
    watch.look()
    for rank in range(2):
        write_status(run, status(rank, links=[link(push_bytes=0)]))
    first = check(watch.look())
    assert first["status"] == "running"
    assert [worker["push_bps"] for worker in first["workers"]] == [None, None]
    clock.now_s += 1
    later = 11_000 * MS_NS
    for rank in range(2):
        starts = [[3, 1200 * MS_NS], [4, 1350 * MS_NS + rank]]
        write_status(
            run,
            status(rank, links=[link(push_bytes=125_000)], monotonic_ns=later, starts=starts),
        )
    second = check(watch.look())
    assert [worker["push_bps"] for worker in second["workers"]] == [1_000_000] * 2
    assert second["workers"][0]["limit_bps"] == 956_400_000
    assert second["iteration"]["numbers"] == [1, 2, 3]
    assert second["iteration"]["slowest_ns"] == [100 * MS_NS, 100 * MS_NS, 150 * MS_NS + 1]
    assert second["workers"][1]["series"]["push_bps"] == [1_000_000]
    clock.now_s += 60
    third = check(watch.look())
    assert (third["status"], third["silent_s"]) == ("silent", 60.0)


def test_a_worker_that_was_killed_has_no_rates(tmp_path: Path) -> None:
    """Its last file still says that it is watched, and that it has not left."""
    run, clock = make_run(tmp_path / "run"), Clock()
    watch = RunWatch(run, clock)
    for second in range(6):
        for rank in range(2 if second < 2 else 1):
            sums = {"links": [link(push_bytes=125_000 * second)], "transfers": second}
            at_ns = (10_000 + 1000 * second) * MS_NS
            write_status(run, status(rank, monotonic_ns=at_ns, unix_ns=at_ns, **sums))
        clock.now_s += 1
        state = check(watch.look())
    lives, killed = state["workers"]
    assert (lives["push_bps"], killed["push_bps"]) == (1_000_000, None)
    assert (len(lives["links"]), killed["links"]) == (1, [])
    assert (lives["peers_ns"], killed["peers_ns"]) == (0, None)
    shown = text_of(state)
    assert "worker-1 (silent for 4 s)" in shown
    assert "worker-0 (" not in shown


def test_plans_and_warnings_as_they_come(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    log = run / "control.jsonl"
    watch = RunWatch(run)
    assert watch.look()["plans"]["latest"] == []
    log.write_text(plan(1) + plan(2)[:30])
    state = check(watch.look())
    assert [one["number"] for one in state["plans"]["latest"]] == [1]
    assert state["iteration"]["predicted_ns"] is None  # nobody has adopted it
    with log.open("a") as file:
        file.write(plan(2)[30:] + event("adopted", plan=2, worker="worker-0", iteration=20))
        outcome = {"measured_iteration_ns": 95 * MS_NS, "error": 0.05, "iterations": 10}
        file.write(event("outcome", plan=2, predicted_iteration_ns=90 * MS_NS, **outcome))
        file.write(event("refused", by="controller", reason="garbage", count=3, detail=""))
        sample = {"server": None, "direction": "push", "bandwidth_bps": 9, "spread_bps": None}
        file.write(event("samples", worker="worker-0", samples=[sample]))
    with (run / "logs" / "worker-1.log").open("a") as file:
        file.write("step 1\nbyteprophet: warning: \x1b[31mthe disk is full\nstep 2\n")
    write_status(run, status(0))
    state = check(watch.look())
    assert state["plans"]["adopted"] == 1
    assert [(one["kind"], one["text"]) for one in state["happened"]] == [
        ("plan", "plan 2 adopted by worker-0"),
        ("plan", "plan 2 measured: +5.0% of its prediction"),
    ]
    assert all(one["unix_s"] > 1e9 for one in state["happened"])
    assert state["plans"]["current"] == 2
    assert state["iteration"]["predicted_ns"] == 90 * MS_NS
    assert state["plans"]["latest"][-1]["measured_ns"] == 95 * MS_NS
    assert state["plans"]["refused"] == [{"by": "controller", "reason": "garbage", "count": 3}]
    assert state["workers"][0]["estimates"][0]["bandwidth_bps"] == 9
    assert state["warnings"]["counts"] == [{"role": "worker-1", "level": "warning", "count": 1}]
    assert "the disk is full" in state["warnings"]["latest"][0]["text"]
    assert "\x1b" not in state["warnings"]["latest"][0]["text"]


def test_plans_of_a_start_end_with_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    log = run / "control.jsonl"
    log.write_text(plan(7) + event("adopted", plan=7, worker="worker-0", iteration=20))
    watch = RunWatch(run)
    assert watch.look()["plans"]["current"] == 7
    (run / "attempts" / "0").mkdir(parents=True)
    log.rename(run / "attempts" / "0" / log.name)
    log.write_text(plan(1))
    plans = check(watch.look())["plans"]
    assert plans["current"] is None
    assert [one["number"] for one in plans["latest"]] == [1]
    with log.open("a") as file:
        file.write(event("adopted", plan=1, worker="worker-0", iteration=20))
    plans = check(watch.look())["plans"]
    assert (plans["current"], plans["adopted"]) == (1, 1)


def test_a_run_that_has_ended_is_not_changed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write_status(run, status(0, ended=True, watching=False, watched=0))
    end_run(run, "failed", "worker-1 was killed by signal 9 (SIGKILL) after 3.0 s")
    before = sorted(path.relative_to(run) for path in run.rglob("*"))
    state = check(RunWatch(run).look())
    assert state["status"] == "failed"
    assert state["failed"].startswith("worker-1 was killed")
    assert state["iteration"]["median_ns"] == 100 * MS_NS
    assert state["roles"][-1] == {"name": "worker-1", "exit_status": 0, "cpu_s": 1.5}
    assert sorted(path.relative_to(run) for path in run.rglob("*")) == before


def test_a_start_that_another_one_follows_is_not_the_jobs_end(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    config = run / "config.toml"
    config.write_text("max_restarts = 1\n" + config.read_text())
    write_status(run, status(0, ended=True))
    watch = RunWatch(run)
    assert check(watch.look())["status"] == "unknown"  # the launcher may start it again
    # A role's own summary comes first, where roles run on other hosts.
    own = run / "summary-worker-0.json"
    told = {"schema": 1, "status": "failed", "failed": "worker-0 ended with status 1", "roles": []}
    own.write_text(json.dumps({**told, "restarts": 0}))
    state = check(watch.look())
    assert (state["status"], state["failed"]) == ("restarting", "worker-0 ended with status 1")
    end_run(run, "restarting", "worker-0 ended with status 1")
    state = check(watch.look())
    assert (state["status"], state["failed"]) == ("restarting", "worker-0 ended with status 1")
    assert "byteprophet_job_failed" in (text := metrics_text(state))
    assert 'byteprophet_job_failed{run="run"} 0' in text
    for path in (own, run / "summary.json", run / "live" / "worker-0.json"):
        path.unlink()  # moved to attempts/0
    state = check(watch.look())
    assert (state["status"], state["failed"], state["workers"]) == ("unknown", None, [])
    own.write_text(json.dumps({**told, "restarts": 1}))
    assert watch.look()["status"] == "failed"


def test_a_run_that_is_deleted_stays_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    watch = RunWatch(run)
    watch.look()
    shutil.rmtree(run)
    assert check(watch.look())["problems"] == [f"{run}: the run directory is gone"]
    assert not run.exists()


def test_the_bound_of_a_paced_job(tmp_path: Path) -> None:
    """10 ms of layers; of 8 Mbit, 5.9 have to cross a link of 956.4 Mbit/s after them."""
    run = make_run(tmp_path / "run")
    tensor = 'name = "w"\nsize_bytes = 1000000\nforward_ns = 4000000\nbackward_ns = 6000000\n'
    workload = tmp_path / "w.toml"
    workload.write_text(f'name = "w"\nbatch_size = 1\n[[tensor]]\n{tensor}')
    (run / "worker.toml").write_text(
        f'workload = "{workload}"\nwarmup_iterations = 1\niterations = 1\nscheduler = "prophet"\n'
    )
    iteration = check(RunWatch(run).look())["iteration"]
    assert iteration["bound_why"] == "the workload"
    # The only gradient is ready after 6 ms, crosses the link, but for what the limiter lets pass at
    # once, and only then can forward run.
    link_ns = round(8e6 / 956_400_000 * 1e9) - BURST_BYTES * 8
    assert abs(iteration["bound_ns"] - (10_000_000 + link_ns)) < 1000
    with (run / "worker.toml").open("a") as file:
        file.write('strategies = ["", "half.json"]\n')  # in turn, in one job
    iteration = check(RunWatch(run).look())["iteration"]
    assert (iteration["bound_ns"], iteration["bound_why"]) == (None, "a strategy changes the job")


def test_the_bound_of_a_job_without_servers(tmp_path: Path) -> None:
    """Two ranks send each byte once: as with servers, where ready and needed at the same times."""
    run = make_run(tmp_path / "run")
    config = (run / "config.toml").read_text()
    config = config.replace("servers = 1", "servers = 0").replace('scheduler = "prophet"', "")
    (run / "config.toml").write_text(config)
    tensor = 'name = "w"\nsize_bytes = 1000000\nforward_ns = 4000000\nbackward_ns = 6000000\n'
    workload = tmp_path / "w.toml"
    workload.write_text(f'name = "w"\nbatch_size = 1\n[[tensor]]\n{tensor}')
    (run / "worker.toml").write_text(
        f'workload = "{workload}"\nwarmup_iterations = 1\niterations = 1\nruntime = "ddp"\n'
    )
    state = check(RunWatch(run).look())
    assert state["problems"] == []
    link_ns = round(8e6 / 956_400_000 * 1e9) - BURST_BYTES * 8
    assert abs(state["iteration"]["bound_ns"] - (10_000_000 + link_ns)) < 1000


def test_a_viewer_that_may_not_write_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "live").write_text("a file")
    state = check(RunWatch(run).look())
    assert any("workers do not know that they are watched" in text for text in state["problems"])


DAMAGES = {
    "live/worker-0.json": "live/worker-0.json",
    "config.toml": "config.toml",
    "summary.json": "summary.json",
    "control.jsonl": "control.jsonl",
    "tuning.jsonl": "tuning.jsonl",
    "profile.json": "profile.json",
    "worker.toml": "worker.toml",
}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize(
    "content", [b"{", b"\xff\xfe\n", b"[1]\n", b'{"schema": 1}\n', b'{"schema": 1, "event": 7}\n']
)
def test_a_damaged_file_is_a_problem_and_no_more(tmp_path: Path, name: str, content: bytes) -> None:
    run = make_run(tmp_path / "run")
    write_status(run, status(1))
    (run / "live").mkdir(exist_ok=True)
    (run / name).write_bytes(content)
    watch = RunWatch(run)
    for _ in range(2):
        state = check(watch.look())
        assert [worker["role"] for worker in state["workers"]] == ["worker-1"]
        whole = name.endswith(".jsonl") and content == b"{"  # not a line yet
        valid = name == "summary.json" and content.startswith(b"{") and content != b"{"
        if not whole and not valid:
            assert any(name.rpartition("/")[2] in text for text in state["problems"])


def test_files_of_random_bytes_and_other_kinds(tmp_path: Path) -> None:
    chance = random.Random(7)
    whole = json.dumps(status(0)).encode()
    for round_number in range(60):
        run = make_run(tmp_path / "run")
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        cut = bytes(damaged[: chance.randrange(len(damaged))])
        (run / "live").mkdir()
        (run / "live" / "worker-0.json").write_bytes(cut if round_number % 2 else bytes(damaged))
        (run / "control.jsonl").write_bytes(chance.randbytes(200) + b"\n")
        check(RunWatch(run).look())
        shutil.rmtree(run)
    run = make_run(tmp_path / "run")
    (run / "live").mkdir()
    os.mkfifo(run / "live" / "worker-0.json")
    os.mkfifo(run / "control.jsonl")
    (run / "logs" / "worker-0.log").unlink()
    (run / "logs" / "worker-0.log").mkdir()
    state = check(RunWatch(run).look())
    assert len(state["problems"]) >= 2


@pytest.mark.parametrize("name", ["network", "events", "live", "profile.json"])
def test_a_directory_of_runs_may_have_anything_else(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    assert newest_run(tmp_path) == tmp_path
    make_run(tmp_path / "a")
    assert newest_run(tmp_path) == tmp_path / "a"


def test_the_newest_run_of_a_directory(tmp_path: Path) -> None:
    for number, name in enumerate(("b", "a")):
        make_run(tmp_path / name)
        os.utime(tmp_path / name / "config.toml", (number, number))
    assert newest_run(tmp_path) == tmp_path / "a"
    assert newest_run(tmp_path / "b") == tmp_path / "b"
    with pytest.raises(UserError, match="there is no such run directory"):
        newest_run(tmp_path / "missing")
    with pytest.raises(UserError, match="neither a run directory nor has any in it"):
        newest_run(tmp_path / "a" / "logs")
