"""Jobs in a Ray cluster of three raylets on this machine, which these tests share."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.input_files import read_json

from ..thorough import by_default
from .jobs import (
    NAMED_S,
    NO_FORKS,
    RUN,
    STAY,
    Started,
    each_killed_role_is_named,
    fingerprints,
    killed_by_default,
    process_of,
    processes_below,
    run,
    run_directory,
    trained_alone,
    wait_until_gone,
    write_script,
)
from .pages import shown_on

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
ON = ("--on", "ray")
# Of the cluster's head: how soon it takes a node for lost that does not answer.
HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


def test_without_ray_one_is_told_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    assert run_cli(["run", *ON, "--", "true"]) == 2
    assert "--on ray needs Ray: pip install 'byteprophet[ray]'" in capsys.readouterr().err


@dataclass(frozen=True)
class RayCluster:
    """A running cluster. ``environment``: of whoever connects to it."""

    cluster: Any
    environment: dict[str, str]


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'byteprophet[ray]'")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "_system_config": HEALTH, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in NO_FORKS.items():
            patch.setenv(name, value)  # the nodes pass their variables on to roles
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            cluster.add_node(num_cpus=1)
    yield RayCluster(cluster, {**os.environ, **NO_FORKS, "RAY_ADDRESS": cluster.address})
    cluster.shutdown()


def left(tmp_path: Path) -> list[object]:
    """What is left of jobs whose run directories are below ``tmp_path``."""
    runs = [path.name for path in (tmp_path / "runs").glob("*")]
    scratch = [path for name in runs for path in Path("/tmp").glob(f"byteprophet-{name}-*")]
    return [*scratch, *(pid for name in runs for pid in processes_below(name))]


@pytest.mark.job
@pytest.mark.usefixtures("default_signals")
def test_a_job_gives_what_one_process_gives(tmp_path: Path, ray_cluster: RayCluster) -> None:
    command = write_script(tmp_path)
    on = (*shown_on("ray"), "--record")
    there = run(tmp_path, *on, "--", *command, env=ray_cluster.environment)
    assert there.returncode == 0, there.stderr + there.stdout
    made = run_directory(there.stderr)
    assert fingerprints(made) == trained_alone()
    assert "[worker-1] done 1" in there.stdout
    assert (made / "logs" / "worker-1.log").read_text().endswith("done 1\n")
    assert (made / "events" / "transfers-worker-1.arrows").is_file()
    names = [role["name"] for role in read_json(made / "summary.json")["roles"]]
    assert names == ["scheduler", "server-0", "worker-0", "worker-1"]
    assert not (made / "roles").exists()
    wait_until_gone(lambda: left(tmp_path), NAMED_S)


@pytest.mark.job(3)
@pytest.mark.parametrize("killed", killed_by_default("server-0", "worker-1"))
@pytest.mark.usefixtures("default_signals")
def test_each_killed_role_is_named_and_nothing_is_left(
    tmp_path: Path, ray_cluster: RayCluster, killed: Sequence[str]
) -> None:
    each_killed_role_is_named(
        tmp_path, ON, ray_cluster.environment, lambda: left(tmp_path), killed=killed
    )


def process_in(tmp_path: Path, role: str) -> int:
    """The process of ``role`` of the one job below ``tmp_path``."""
    (name,) = [path.name for path in (tmp_path / "runs").iterdir()]
    return process_of(role, name)


@pytest.mark.job
@pytest.mark.usefixtures("default_signals")
def test_roles_end_with_the_launcher(tmp_path: Path, ray_cluster: RayCluster) -> None:
    job = Started([*RUN, *ON, *STAY], tmp_path, 2, ray_cluster.environment)
    job.process.send_signal(signal.SIGKILL)
    assert job.end(NAMED_S)[0] == -signal.SIGKILL
    wait_until_gone(lambda: left(tmp_path), NAMED_S)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("127.0.0.1:1", "--on ray: no Ray cluster can be reached at RAY_ADDRESS=127.0.0.1:1: "),
        ("ray://127.0.0.1:1", "RAY_ADDRESS=ray://127.0.0.1:1: must be that of the head node"),
    ],
)
def test_a_cluster_that_is_not_there_is_told(
    address: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert run_cli(["run", *ON, "--", "true"]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.job
@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("is_of_the_head", by_default([False, True], [False]))
def test_a_raylet_that_was_killed_is_named(
    tmp_path: Path, ray_cluster: RayCluster, is_of_the_head: bool
) -> None:
    """The last tests: that node stays away.

    The driver is connected to the head's raylet. If that ends, Ray ends the actors on all nodes,
    because their owner, the driver, is lost; and it may say so of any of them first.
    """
    job = Started([*RUN, *ON, *STAY], tmp_path, 2, ray_cluster.environment)
    head = ray_cluster.cluster.head_node.all_processes["raylet"][0].process.pid
    raylets = {role: raylet_above(process_in(tmp_path, role)) for role in ("worker-0", "worker-1")}
    role = next((name for name, pid in raylets.items() if (pid == head) == is_of_the_head), None)
    raylet = head if role is None else raylets[role]
    os.kill(raylet, signal.SIGKILL)
    os.waitpid(raylet, 0)  # its actors look whether there is such a process
    status, said = job.end(NAMED_S)
    assert status == 1
    assert "the Ray node of this process is lost" in said or re.search(
        rf"{role}: its Ray node [0-9.]+ is lost: its raylet has ended", said
    ), said
    wait_until_gone(lambda: left(tmp_path), NAMED_S)


def raylet_above(pid: int) -> int:
    """The raylet among the processes above ``pid``."""
    while True:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert pid > 1
        if Path(f"/proc/{pid}/comm").read_text().strip() == "raylet":
            return pid
