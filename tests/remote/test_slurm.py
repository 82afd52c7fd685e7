"""Jobs in allocations of a real Slurm with three nodes on this machine, shared by these tests."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet.input_files import read_json

from .jobs import (
    NAMED_S,
    RUN,
    SAVE,
    SAVE_AT_THE_END,
    SOON,
    STAY,
    Started,
    each_killed_role_is_named,
    fingerprints,
    killed_by_default,
    process_of,
    processes_below,
    run,
    run_directory,
    runs_as_alone,
    variable,
    wait_until_gone,
    write_script,
)
from .pages import commands_for, file_of_the_page, shown_on
from .slurm_cluster import SlurmCluster, slurm_cluster, why_not

pytestmark = [
    pytest.mark.job,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.usefixtures("default_signals"),
]
ON = ("--on", "slurm")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Jobs have a temporary directory of their own, with a path that is short enough for roles."""
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as temporary,
        slurm_cluster(tmp_path_factory.mktemp("cluster") / "slurm") as cluster,
    ):
        yield replace(cluster, environment={**cluster.environment, "TMPDIR": temporary})


def assert_nothing_left(tmp_path: Path, slurm: SlurmCluster) -> None:
    wait_until_gone(lambda: left(tmp_path, slurm), NAMED_S)


def left(tmp_path: Path, slurm: SlurmCluster) -> list[object]:
    """What goes on, and temporary directories of the launcher and of roles."""
    directories = Path(slurm.environment["TMPDIR"]).glob("byteprophet-*")
    return [*going_on(tmp_path, slurm), *directories]


def going_on(tmp_path: Path, slurm: SlurmCluster) -> list[object]:
    """Roles' processes, and jobs."""
    return [*processes_below(str(tmp_path)), *slurm.jobs()]


def test_a_job_gives_what_one_process_gives(tmp_path: Path, slurm: SlurmCluster) -> None:
    """It gets an allocation of its own."""
    directory = runs_as_alone(tmp_path, *shown_on("slurm"), env=slurm.environment)
    assert not (directory / "keys").exists()
    roles = {role["name"]: role for role in read_json(directory / "summary.json")["roles"]}
    assert list(roles) == ["scheduler", "server-0", "worker-0", "worker-1", "controller"]
    assert_nothing_left(tmp_path, slurm)


def test_the_page_can_be_followed(tmp_path: Path, slurm: SlurmCluster) -> None:
    """Its batch script runs in the allocation that it gets, as launcher/slurm/job.sbatch does."""
    write_script(tmp_path)
    (tmp_path / "job.sbatch").write_text(file_of_the_page("job.sbatch"))
    path = f"{Path(sys.executable).parent}:{slurm.environment['PATH']}"
    for command in commands_for("test_slurm.py"):
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env={**slurm.environment, "PATH": path},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    wait_until_gone(slurm.jobs, 100)
    (output,) = tmp_path.glob("slurm-*.out")
    said = output.read_text()
    assert "byteprophet: done after " in said
    assert "error" not in said  # the controller is ended, which is none
    rows = fingerprints(tmp_path / run_directory(said))
    assert [row["rank"] for row in rows] == [0, 1]
    assert len({row["sha256"] for row in rows}) == 1
    assert_nothing_left(tmp_path, slurm)


def started(tmp_path: Path, slurm: SlurmCluster) -> Started:
    command = [*RUN, *ON, "--slurm", "--partition=test --time=10", *STAY]
    return Started(command, tmp_path, 2, {**slurm.environment, "BYTEPROPHET_MESH_KEY": "1f"})


@pytest.mark.job(3)
@pytest.mark.parametrize("killed", killed_by_default("scheduler", "worker-1"))
def test_each_killed_role_is_named_and_nothing_is_left(
    tmp_path: Path, slurm: SlurmCluster, killed: Sequence[str]
) -> None:
    each_killed_role_is_named(
        tmp_path,
        ON,
        slurm.environment,
        lambda: left(tmp_path, slurm),
        has_controller=True,
        killed=killed,
    )


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_roles_end_with_the_launcher(tmp_path: Path, slurm: SlurmCluster, signum: int) -> None:
    job = started(tmp_path, slurm)
    worker = process_of("worker-1", str(tmp_path))
    assert variable(worker, "BYTEPROPHET_MESH_KEY") == "1f"
    (launcher,) = [
        pid for pid in children_of(job.process.pid) if b"byteprophet" in command_line(pid)
    ]
    os.kill(launcher, signum)
    status, _ = job.end(NAMED_S)
    if signum == signal.SIGTERM:  # salloc has a status of its own for a command that was killed
        assert status == 143
    assert_nothing_left(tmp_path, slurm)


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_scancel_ends_a_job_with_one_line(tmp_path: Path, slurm: SlurmCluster) -> None:
    job = started(tmp_path, slurm)
    assert_scancel_ends(job, tmp_path, slurm)


def submitted(tmp_path: Path, slurm: SlurmCluster, command: list[str]) -> tuple[str, Path]:
    """The number of a batch job that runs ``command``, and its output, when two workers train."""
    script = file_of_the_page("job.sbatch")
    started = "byteprophet run --on slurm -- python train.py"
    assert started in script
    (tmp_path / "job.sbatch").write_text(script.replace(started, shlex.join(command)))
    done = subprocess.run(
        ["sbatch", "--parsable", "job.sbatch"],
        cwd=tmp_path, env=slurm.environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    number = done.stdout.strip()
    output = tmp_path / f"slurm-{number}.out"
    deadline_s = time.monotonic() + 100
    while not output.exists() or output.read_text().count("] training") < 2:
        assert time.monotonic() < deadline_s, output.exists() and output.read_text()
        time.sleep(0.1)
    return number, output


def test_scancel_of_a_batch_job_is_quoted(tmp_path: Path, slurm: SlurmCluster) -> None:
    """Slurm sends SIGTERM to the launcher, too: before or after it notices that a role ends."""
    number, output = submitted(tmp_path, slurm, [*RUN, *ON, *STAY])
    slurm.command("scancel", number)
    assert_nothing_left(tmp_path, slurm)
    said = output.read_text()
    ours = [line for line in said.splitlines() if line.startswith("byteprophet: ")]
    who = r"(ended by signal 15|worker-\d)"
    assert re.match(
        rf"byteprophet: error: {who}: STEP {number}\.\d+ ON n\d CANCELLED AT ", ours[-1]
    ), said


@pytest.mark.parametrize("to", [["--batch"], []], ids=["script", "steps"])
def test_a_script_saves_at_slurms_signal(
    tmp_path: Path, slurm: SlurmCluster, to: list[str]
) -> None:
    """As from sbatch --signal=B:USR1 and --signal=USR1, before the time limit."""
    number, output = submitted(tmp_path, slurm, [*RUN, *ON, *SAVE])
    slurm.command("scancel", *to, "--signal=USR1", number)
    assert_nothing_left(tmp_path, slurm)
    said = output.read_text()
    assert said.splitlines()[-1].startswith("byteprophet: done after "), said
    assert [f"saved {rank}\n" in said for rank in range(2)] == [True, True], said


def test_a_script_saves_within_the_grace(tmp_path: Path, slurm: SlurmCluster) -> None:
    number, _ = submitted(tmp_path, slurm, [*RUN, *ON, "--grace", "60", *SAVE_AT_THE_END])
    slurm.command("scancel", "--batch", "--signal=TERM", number)
    assert_nothing_left(tmp_path, slurm)
    assert all((tmp_path / f"saved-{rank}").exists() for rank in range(2))


def test_a_script_saves_before_slurm_kills_it(tmp_path: Path, slurm: SlurmCluster) -> None:
    """Slurm sends SIGTERM to roles and to the launcher, which asks them to end a second later."""
    save = [word.replace("sleep 4.5", "sleep 2.5") for word in SAVE_AT_THE_END]
    number, _ = submitted(tmp_path, slurm, [*RUN, *ON, *save])
    slurm.command("scancel", number)
    assert_nothing_left(tmp_path, slurm)
    assert all((tmp_path / f"saved-{rank}").exists() for rank in range(2))


def test_servers_of_a_heterogeneous_job_are_on_its_first_node(
    tmp_path: Path, slurm: SlurmCluster
) -> None:
    """As launcher/slurm/servers-without-gpus.sbatch has it; and scancel ends such a job, too."""
    allocation = ["salloc", "--nodes=1", ":", "--nodes=2", "--"]
    command = [*allocation, *RUN, *ON, "--", "sh", "-c", "echo training; exec sleep 1000"]
    job = Started(command, tmp_path, 2, slurm.environment)
    nodes = {
        role: variable(process_of(role, str(tmp_path)), "SLURMD_NODENAME")
        for role in ("scheduler", "server-0", "worker-0", "worker-1")
    }
    assert nodes["scheduler"] == nodes["server-0"]
    assert set(nodes.values()) == set(slurm.nodes), nodes
    assert_scancel_ends(job, tmp_path, slurm)


def assert_scancel_ends(job: Started, tmp_path: Path, slurm: SlurmCluster) -> None:
    slurm.command("scancel", *slurm.jobs())
    status, said = job.end(NAMED_S)
    assert status == 1
    assert said.startswith("byteprophet: error: ")
    assert "CANCELLED" in said
    assert_nothing_left(tmp_path, slurm)


def test_outside_of_slurm_wrong_input_waits_in_no_queue(
    tmp_path: Path, slurm: SlurmCluster
) -> None:
    done = run(tmp_path, *ON, "--scheduler", "best", "--", "true", env=slurm.environment)
    assert done.returncode == 2
    assert "choose one of stock, fifo" in done.stderr
    assert "salloc" not in done.stderr


def test_doctor_looks_at_all_nodes(tmp_path: Path, slurm: SlurmCluster) -> None:
    command = [sys.executable, "-m", "byteprophet", "doctor", *ON, "--json"]
    done = subprocess.run(
        ["salloc", "--quiet", "--nodes=3", *command],
        cwd=tmp_path, env=slurm.environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert (done.returncode, report["able"]) == (0, True), done.stdout + done.stderr
    assert report["hosts"] == list(slurm.nodes)
    reached = {(pair["source"], pair["target"]) for pair in report["pairs"] if not pair["errors"]}
    assert len(reached) == 6
    assert_nothing_left(tmp_path, slurm)


def test_slurms_time_limit_ends_a_job_with_one_line(tmp_path: Path, slurm: SlurmCluster) -> None:
    """Slurm looks at the limits of all jobs once in half a minute."""
    job = started(tmp_path, slurm)
    (number,) = slurm.jobs()
    ended = slurm.command("scontrol", "update", f"JobId={number}", "EndTime=now+1")
    assert ended.returncode == 0, ended.stderr
    status, said = job.end(NAMED_S + 35)
    assert status == 1
    assert said.startswith("byteprophet: error: worker-")
    assert "DUE TO TIME LIMIT" in said
    assert_nothing_left(tmp_path, slurm)


def processes_of_step(node: str) -> list[int]:
    """Processes that Slurm started on ``node``, and their keepers."""
    every = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    roles = [pid for pid in every if variable(pid, "SLURMD_NODENAME") == node]
    parents = {parent_of(pid) for pid in roles}
    keepers = {pid for pid in parents if command_line(pid).startswith(b"slurmstepd")}
    return [*keepers, *roles]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_node_that_fails_is_named(tmp_path: Path, slurm: SlurmCluster) -> None:
    """Its daemon is killed, and with it what ran there. The last test: the node stays down.

    The servers are on the other node.
    """
    command = [*RUN, *ON, "--", *write_script(tmp_path), "stay"]
    job = Started(command, tmp_path, 2, {**slurm.environment, **SOON})
    victim = process_of("worker-0", str(tmp_path))
    node = variable(victim, "SLURMD_NODENAME")
    memory = variable(victim, "BYTEPROPHET_SHARED_MEMORY")
    os.killpg(slurm.daemons[node].pid, signal.SIGKILL)
    for pid in processes_of_step(node):
        os.kill(pid, signal.SIGKILL)
    status, said = job.end(NAMED_S + 15)
    assert status == 1
    assert said.startswith("byteprophet: error: worker-0")
    # Nobody removes what the node itself has of worker-0.
    wait_until_gone(lambda: going_on(tmp_path, slurm), NAMED_S)
    assert memory
    for path in Path("/dev/shm").glob(f"BytePS_*_{memory}_*"):  # of a real node, it is gone, too
        path.unlink()
