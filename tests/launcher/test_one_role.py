"""Roles of one job, each started on its own as on a host of its own: here, they share loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w

from byteprophet.errors import UserError
from byteprophet.input_files import read_json
from byteprophet.launcher.checks import LOOPBACK, root_port
from byteprophet.launcher.forked_process import VARIABLE
from byteprophet.launcher.job_file import Address, job_text, parse_job, read_job_file
from byteprophet.launcher.leftovers import marked_processes
from byteprophet.launcher.one_role import resolve_role, run_role
from byteprophet.launcher.plan import plan_roles

WORKER = """
import os, pathlib, sys, time, torch
import byteps.torch as bps
bps.init()
for step in range(int(sys.argv[1])):
    value = torch.full((1000,), float(bps.rank() + 1))
    bps.synchronize(bps.byteps_push_pull(value, average=False, name="value"))
    pathlib.Path(f"step-{bps.rank()}").touch()
    time.sleep(0.01)  # it may go on for long, and others need the processors
print("total", value[0].item(), "of", bps.size())
bps.shutdown()
"""
PEER_LOST_S = 45.0


def write(path: Path, **fields: object) -> Path:
    job = {
        "schema": 1,
        "root": f"{LOOPBACK}:{root_port(None, LOOPBACK)}",
        "command": [sys.executable, "-c", WORKER, "3"],
        "workers": 2,
        "servers": 1,
        "directory": str(path),
        "run_directory": str(path / "run"),
        **fields,
    }
    file = path / "job.toml"
    file.write_text(tomli_w.dumps({name: value for name, value in job.items() if value != ""}))
    return file


def start(job: Path, kind: str, index: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "byteprophet", "role", kind, "--job", job, "--index", str(index)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=job.parent,
        # What a fork server imports pays only for several workers.
        env={**os.environ, VARIABLE: "0"},
    )


ROLES = (("worker", 1), ("server", 0), ("scheduler", 0), ("worker", 0))


@pytest.mark.job
def test_roles_find_each_other_in_any_order(tmp_path: Path) -> None:
    # Without a policy, workers import half as much.
    job = write(tmp_path, scheduler="stock")
    roles = {f"{kind}-{index}": start(job, kind, index) for kind, index in ROLES}
    said = {name: role.communicate(timeout=120)[0] for name, role in roles.items()}
    assert {name: role.returncode for name, role in roles.items()} == dict.fromkeys(roles, 0), said
    assert "[worker-0] total 3.0 of 2" in said["worker-0"]
    assert "[worker-1] total 3.0 of 2" in said["worker-1"]
    for name in ("worker-0", "worker-1", "server-0", "scheduler"):
        assert read_json(tmp_path / "run" / f"summary-{name}.json")["status"] == "done"
    assert not marked_processes(str(tmp_path / "run"))


@pytest.mark.job
def test_a_killed_role_is_named_by_the_others(tmp_path: Path) -> None:
    job = write(
        tmp_path, scheduler="stock", command=[sys.executable, "-c", WORKER, "1000000"],
        environment={"BYTEPROPHET_DEAD_AFTER_S": "5"},
    )  # fmt: skip
    roles = {f"{kind}-{index}": start(job, kind, index) for kind, index in ROLES}
    deadline_s = time.monotonic() + 120
    while not all((tmp_path / f"step-{rank}").exists() for rank in (0, 1)):
        assert time.monotonic() < deadline_s
        assert all(role.poll() is None for role in roles.values())
        time.sleep(0.1)
    (pid,) = marked_processes(str(tmp_path / "run"), "worker-1")
    os.kill(pid, signal.SIGKILL)
    said = {name: role.communicate(timeout=PEER_LOST_S)[0] for name, role in roles.items()}
    assert roles["worker-1"].returncode == 1
    assert "worker-1 was killed by signal 9" in said["worker-1"]
    assert roles["worker-0"].returncode == 1
    assert "worker-1" in said["worker-0"].splitlines()[-1]
    assert not marked_processes(str(tmp_path / "run"))


def test_how_an_earlier_run_ended_is_gone_once_the_role_starts(tmp_path: Path) -> None:
    """A viewer would show the earlier end while this run trains."""
    live = tmp_path / "run" / "live"
    live.mkdir(parents=True)
    old = [tmp_path / "run" / "summary-worker-0.json", live / "worker-0.json"]
    others = [tmp_path / "run" / "summary-worker-1.json", live / "worker-1.json"]
    for path in (*old, *others):
        path.write_text("{}")
    gone = " && ".join(f"test ! -e '{path}'" for path in old)
    job = write(tmp_path, command=["sh", "-c", gone], servers=0)
    result = run_role(read_job_file(job), "rank", 0, None)
    assert result.failed is None
    assert read_json(old[0])["status"] == "done"
    assert all(path.exists() for path in others)


@pytest.mark.job
@pytest.mark.parametrize("root", ["localhost", LOOPBACK])
def test_who_waits_in_vain_names_a_root_that_leads_to_loopback(root: str, tmp_path: Path) -> None:
    """As on Debian, where the root's own host has its name lead to 127.0.1.1."""
    port = root_port(None, LOOPBACK)
    environment = {"BYTEPROPHET_START_TIMEOUT_S": "3"}
    job = write(tmp_path, root=f"{root}:{port}", scheduler="stock", environment=environment)
    failed = run_role(read_job_file(job), "scheduler", 0, None).failed
    assert failed is not None
    assert "waited 3 s for all to register: 0 of 2 workers" in failed
    hint = f"; on this host, the root's name {root} leads to {LOOPBACK}, which no other host"
    assert (hint in failed) == (root != LOOPBACK)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"schema": 2}, "job.toml: schema: must be 1; .* another version"),
        ({"root": "somewhere"}, "root 'somewhere': use an IPv4 address and a port"),
        ({"root": "10.0.0.1:70000"}, "use an IPv4 address and a port"),
        ({"workers": 0}, "workers 0: must be a whole number from 1 on"),
        ({"command": ["a\0b"]}, "command: no word can contain a NUL"),
        ({"command": "true"}, "command: must be a list of words"),
        ({"workerss": 2}, "workerss: there is no such field; there are schema, root, "),
        ({"environment": {"A=B": "1"}}, "environment: 'A=B': there can be no such variable"),
        ({"environment": {"": "1"}}, "environment: '': there can be no such variable"),
        ({"environment": {"A": "\0"}}, "environment: 'A': there can be no such variable"),
        ({"environment": {"A": 1}}, "environment: must be a table of texts"),
        ({"controller": "10.0.0.1:7000"}, "controller and controller_keys: give both, or none"),
        ({"root": "gpu..cluster:9000"}, "root 'gpu..cluster:9000': use an IPv4 address and a port"),
        ({"root": f"{'x' * 64}.de:9000"}, "use an IPv4 address and a port"),
    ],
)
def test_a_bad_job_file_is_refused(fields: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        read_job_file(write(tmp_path, **fields))


@pytest.mark.parametrize("host", ["gpu_node1", "_a.b-c.d", f"{'x' * 63}.de"])
def test_names_that_a_resolver_takes_are_taken(host: str, tmp_path: Path) -> None:
    assert read_job_file(write(tmp_path, root=f"{host}:9000")).root == Address(host, 9000)


@pytest.mark.parametrize(
    ("name", "field"), [("BYTEPS_SCHEDULER", "scheduler"), ("BYTEPROPHET_SETTINGS", "settings")]
)
def test_a_policy_that_would_have_no_effect_is_refused(
    name: str, field: str, tmp_path: Path
) -> None:
    job = read_job_file(write(tmp_path, environment={name: "p3"}))
    with pytest.raises(UserError, match=f"environment: {name}: the launcher sets it from {field}:"):
        resolve_role(job, "worker", 0, None)


def test_the_controller_is_where_the_job_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative directory of keys is the same for roles that start in different directories."""
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, controller="127.0.0.9:9001", controller_keys="keys", directory="/")
    for kind in ("worker", "controller"):
        (plan,) = plan_roles(resolve_role(read_job_file(file), kind, 0, None), None, tmp_path)
        assert plan.environment["BYTEPROPHET_CONTROLLER"] == "tcp://127.0.0.9:9001"
        assert plan.environment["BYTEPROPHET_CONTROLLER_KEYS"] == str(tmp_path / "keys")


def test_roles_that_the_job_has_not_are_refused(tmp_path: Path) -> None:
    job = read_job_file(write(tmp_path))
    with pytest.raises(UserError, match="server 1: the job has 1 scheduler, 1 server, 2 workers"):
        resolve_role(job, "server", 1, None)
    with pytest.raises(UserError, match="rank: a job with servers has workers; use worker"):
        resolve_role(job, "rank", 0, None)
    with pytest.raises(UserError, match="interface 'eth99': there are"):
        resolve_role(job, "worker", 0, "eth99")


def test_a_role_does_not_start_beside_itself(tmp_path: Path) -> None:
    """Otherwise the end of the second one would kill the first one's processes."""
    job = read_job_file(write(tmp_path))
    mark = {"BYTEPROPHET_RUN": str(tmp_path / "run"), "BYTEPROPHET_ROLE": "worker-0"}
    with subprocess.Popen(["sleep", "60"], env={**os.environ, **mark}) as first:
        try:
            with pytest.raises(UserError, match=rf"worker-0: .*already.* \(process {first.pid}\)"):
                run_role(job, "worker", 0, None)
            assert first.poll() is None
        finally:
            first.kill()


def test_a_role_takes_the_interface_that_leads_to_the_root(tmp_path: Path) -> None:
    job = read_job_file(write(tmp_path, servers=0, local_ranks=2))
    resolved = resolve_role(job, "rank", 1, None)
    assert (resolved.address, resolved.spec.interface) == (LOOPBACK, "lo")
    assert [name.name for name in resolved.names] == ["worker-1.0", "worker-1.1"]
    assert resolved.summary == "summary-worker-1.json"


def test_a_role_waits_for_the_roots_name_as_long_as_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]

    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    monkeypatch.setattr("time.sleep", lambda wait_s: now_s.append(now_s.pop() + wait_s))
    for own, waited_s in ({}, 600), ({"BYTEPROPHET_START_TIMEOUT_S": "1200"}, 1200):
        now_s[0] = 0.0
        job = read_job_file(write(tmp_path, root="worker-0.job:9000", environment=own))
        with pytest.raises(UserError, match=f"led to no IPv4 address for {waited_s} s"):
            resolve_role(job, "worker", 0, None)
        assert waited_s <= now_s[0] <= waited_s + 2


def test_a_role_knows_which_restart_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the job file; or, in a pod that a JobSet has started again, from its environment."""
    job = read_job_file(write(tmp_path, restart=1, max_restarts=3))
    assert (job.spec.restart, job.spec.max_restarts) == (1, 3)
    assert parse_job(job_text(job), "again").spec == job.spec
    assert resolve_role(job, "worker", 0, None).spec.restart == 1
    monkeypatch.setenv("JOBSET_RESTART_ATTEMPT", "2")
    assert resolve_role(job, "worker", 0, None).spec.restart == 2
