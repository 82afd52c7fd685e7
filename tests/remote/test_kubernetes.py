"""Jobs in pods: what is printed is valid, and runs as a kubelet would run it, here."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.input_files import read_json
from byteprophet.launcher.job_file import parse_job
from byteprophet.network import why_not_permitted
from byteprophet.remote.kubernetes.pod import Pod
from byteprophet.remote.kubernetes.pods_file import read_pods_file

from .jobs import (
    NAMED_S,
    RUN,
    STAY,
    STOCK,
    TRAIN_BY_HAND,
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
from .schemas import check_objects

yaml = pytest.importorskip("yaml")
STAND_IN = Path(__file__).with_name("kubectl_stand_in.py")
ON = ("--on", "kubernetes", "--image", "registry.example.com/train:1")
PODS = """
schema = 1
name = "train"
namespace = "training"
directory = "/workspace"
shared_memory = "8Gi"
volumes = {"/data" = "training-data"}

[worker]
limits = {"nvidia.com/gpu" = "1", memory = "32Gi"}
node_selector = {gpu = "h100"}

[server]
limits = {cpu = "4"}
"""


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """The objects that ``run`` prints."""
    assert run_cli(["run", *ON, *arguments, "--", "python", "train.py"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return list(yaml.safe_load_all(captured.out))


@pytest.fixture
def pods_file(tmp_path: Path) -> str:
    path = tmp_path / "pods.toml"
    path.write_text(PODS)
    return str(path)


@pytest.mark.parametrize("arguments", [(), ("--servers", "0"), ("--jobset", "--restarts", "2")])
def test_what_is_printed_is_valid(
    arguments: tuple[str, ...], pods_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the schemas that Kubernetes and JobSet publish."""
    objects = printed(capsys, "--hosts", pods_file, "--workers", "3", *arguments)
    jobs = check_objects(objects)
    assert len(jobs) == (1 if "0" in arguments else 3)
    assert jobs[-1]["spec"]["completions"] == 3
    jobs[-1]["spec"]["completion"] = 3
    schemas = pytest.importorskip("kubernetes_validate")
    with pytest.raises(schemas.ValidationError, match="completion"):
        check_objects(jobs)


def test_a_jobset_with_another_field_is_found(
    pods_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jobset = printed(capsys, "--hosts", pods_file, "--jobset")[-1]
    check_objects([jobset])
    schemas = pytest.importorskip("jsonschema")
    for policy in ({"maxRestart": 1}, {"maxRestarts": "1"}, {"restartStrategy": "Sometimes"}):
        with pytest.raises(schemas.ValidationError):
            check_objects([{**jobset, "spec": {**jobset["spec"], "failurePolicy": policy}}])


def test_pods_are_as_the_file_says(
    pods_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config, service, *jobs = printed(capsys, "--hosts", pods_file)
    assert {each["metadata"]["namespace"] for each in (config, service, *jobs)} == {"training"}
    of = {job["metadata"]["name"]: job["spec"]["template"]["spec"] for job in jobs}
    assert list(of) == ["train-scheduler", "train-server", "train-worker"]
    worker = of["train-worker"]
    assert worker["nodeSelector"] == {"gpu": "h100"}
    limits = {"nvidia.com/gpu": "1", "memory": "32Gi"}
    assert worker["containers"][0]["resources"] == {"limits": limits}
    memory = {"medium": "Memory", "sizeLimit": "8Gi"}
    assert {"name": "shared-memory", "emptyDir": memory} in worker["volumes"]
    claim = {"persistentVolumeClaim": {"claimName": "training-data"}, "name": "volume-0"}
    assert claim in worker["volumes"]
    assert {"name": "volume-0", "mountPath": "/data"} in worker["containers"][0]["volumeMounts"]
    assert of["train-server"]["containers"][0]["resources"] == {"limits": {"cpu": "4"}}
    assert "resources" not in of["train-scheduler"]["containers"][0]
    job = parse_job(config["data"]["job.toml"], "job.toml")
    # The name of the scheduler's pod in the service.
    assert (job.root.host, job.root.port) == ("train-scheduler-0.train", 9000)
    assert str(job.spec.directory) == "/workspace"
    assert "OMP_NUM_THREADS" not in job.spec.environment  # that of the image holds


@pytest.mark.parametrize("jobset", [False, True])
def test_pods_have_the_grace_and_time_to_end_after_it(
    capsys: pytest.CaptureFixture[str], jobset: bool
) -> None:
    config, *others = printed(capsys, "--grace", "120", *(["--jobset"] if jobset else []))
    assert parse_job(config["data"]["job.toml"], "job.toml").spec.limits.grace_s == 120
    if jobset:
        jobs = [each["template"] for each in others[0]["spec"]["replicatedJobs"]]
    else:
        jobs = others[1:]
    pods = [job["spec"]["template"]["spec"] for job in jobs]
    assert len(pods) == 3
    assert all(pod["terminationGracePeriodSeconds"] > 120 for pod in pods)


def test_files_of_this_host_travel_in_the_config_map(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"BYTEPROPHET_PROFILE": "profile", "BYTEPROPHET_STRATEGY_MODEL": "strategy-model"}
    for variable, name in files.items():
        (tmp_path / f"my-{name}.json").write_text(f'{{"of": "{name}"}}')
        monkeypatch.setenv(variable, str(tmp_path / f"my-{name}.json"))
    config = printed(capsys)[0]
    environment = parse_job(config["data"]["job.toml"], "job.toml").spec.environment
    for variable, name in files.items():
        assert config["data"][f"{name}.json"] == f'{{"of": "{name}"}}'
        assert environment[variable] == f"/etc/byteprophet/{name}.json"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--image", "x"], "--image: only with --on kubernetes"),
        (["--jobset"], "--jobset: only with --on kubernetes"),
        (["--on", "kubernetes", "--apply"], "--apply: name the image of the pods with --image"),
        (["--on", "kubernetes", "--image", ""], "--image '': give an image's name, e.g. registry."),
        ([*ON, "--bandwidth", "1gbit"], "a bandwidth limits emulated links"),
        ([*ON, "--controller"], "--controller: not with --on kubernetes"),
        (
            [*ON, "--apply", "--record"],
            "--record: with --apply, pods write records to /tmp/bytepro",
        ),
        ([*ON, "--apply", "--monitor"], "--monitor, --probe: with --apply, pods write records to"),
        ([*ON, "--json"], "--json is a job's result, and without --apply there is none"),
        ([*ON, "--restarts", "1"], "--restarts: plain Jobs do not start again together"),
        ([*ON, "--restarts", "-1"], "restarts -1: must be 0 or more"),
        ([*ON, "--interface", "lo"], "--interface: not with --on kubernetes"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["run", *arguments, "--", "true"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert says in captured.err


def test_without_kubectl_nothing_is_applied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    assert run_cli(["run", *ON, "--apply", "--", "true"]) == 2
    assert "--apply: kubectl is not installed here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("1", "BYTEPROPHET_RECORD: with --apply, pods write records to /tmp/byteprophet-"),
        ("0", "--apply: kubectl is not installed here"),
    ],
)
def test_records_that_the_shell_asks_for_are_not_lost(
    value: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("BYTEPROPHET_RECORD", value)
    assert run_cli(["run", *ON, "--apply", "--", "true"]) == 2
    assert says in capsys.readouterr().err


def test_records_on_a_volume_are_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    file = tmp_path / "pods.toml"
    file.write_text('schema = 1\nimage = "train:1"\nvolumes = {"/tmp" = "records"}\n')
    on = ["--on", "kubernetes", "--hosts", str(file), "--apply", "--record"]
    assert run_cli(["run", *on, "--", "true"]) == 2
    assert "--apply: kubectl is not installed here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"schema": "2"}, "schema: must be 1"),
        ({"name": '"Train"'}, "name 'Train': must be at most 40 lower-case letters"),
        ({"namespace": '"Team_A"'}, "namespace 'Team_A': must be at most 63 lower-case letters"),
        ({"image": "3"}, "image 3: must be text"),
        ({"shared_memory": '"much"'}, "shared_memory 'much': must be a quantity"),
        ({"volumes": '{data = "claim"}'}, "volumes: 'data': must be an absolute path"),
        ({"worker": "{limits = {cpu = 4}}"}, "worker: limits: must be a table of texts"),
        ({"worker": '{limits = {cpu = "a"}}'}, "worker: limits: cpu 'a': must be a quantity"),
        ({"server": "{size = 1}"}, "server: size: there is no such field"),
        ({"pods": "1"}, "pods: there is no such field; there are image, name"),
    ],
)
def test_a_wrong_pods_file_is_refused(tmp_path: Path, changed: dict[str, str], says: str) -> None:
    path = tmp_path / "pods.toml"
    fields = {"schema": "1"} | changed
    path.write_text("".join(f"{name} = {text}\n" for name, text in fields.items()))
    with pytest.raises(UserError, match=r"pods\.toml: ") as refused:
        read_pods_file(path)
    assert says in str(refused.value)


def test_why_a_pod_waits_is_known() -> None:
    """As clusters report it: no node is free; an image cannot be pulled; a container was killed.

    A mesh's proxy runs beside the role's container.
    """
    metadata = {
        "name": "train-worker-1-abcde",
        "labels": {
            "app.kubernetes.io/component": "worker",
            "batch.kubernetes.io/job-completion-index": "1",
        },
    }
    condition = {"type": "PodScheduled", "reason": "Unschedulable", "message": "0/3 nodes"}
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    proxy = {"name": "istio-proxy", "state": {"running": {}}}
    found = [
        Pod.parse({"metadata": metadata, "status": status})
        for status in (
            {"phase": "Pending", "conditions": [condition]},
            {"phase": "Pending", "containerStatuses": [proxy, {"name": "role", "state": waiting}]},
            {"phase": "Running", "containerStatuses": [proxy, {"name": "role", "state": waiting}]},
            {"phase": "Failed", "containerStatuses": [proxy, {"name": "role", "state": killed}]},
        )
    ]
    assert [(pod.role, pod.waits, pod.status, pod.reason) for pod in found] == [
        ("worker-1", "Unschedulable", None, ""),
        ("worker-1", "ImagePullBackOff", None, ""),
        ("worker-1", "ImagePullBackOff", None, ""),
        ("worker-1", "", 137, "OOMKilled"),
    ]
    assert [pod.has_started for pod in found] == [False, False, False, True]


@dataclass(frozen=True)
class Cluster:
    """This machine as a cluster. ``name``: of all objects."""

    environment: dict[str, str]
    state: Path
    name: str
    pods_file: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        return (*ON, "--hosts", str(self.pods_file), "--apply")

    @property
    def run_directory(self) -> Path:
        """The one of all pods, which have the same /tmp here."""
        return Path("/tmp") / self.name

    def left(self) -> list[object]:
        found = [*self.state.glob("pods/*"), *self.state.glob("objects/*/*")]
        return [*processes_below(str(self.run_directory)), *found]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    reason = why_not_permitted()
    if reason is not None or os.geteuid() != 0:
        pytest.skip(reason or "mounting needs root")
    kubectl, state = tmp_path / "bin" / "kubectl", tmp_path / "state"
    for directory in (kubectl.parent, state):
        directory.mkdir()
    kubectl.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    kubectl.chmod(0o755)
    name = f"train-{os.getpid()}-{tmp_path.name[-1]}"
    (tmp_path / "pods.toml").write_text(f'schema = 1\nname = "{name}"\n')
    environment = {
        **os.environ,
        "PATH": f"{kubectl.parent}:{os.environ['PATH']}",
        "KUBECTL_STATE": str(state),
        "KUBECTL_WORKDIR": str(tmp_path),
    }
    made = Cluster(environment, state, name, tmp_path / "pods.toml")
    yield made
    shutil.rmtree(made.run_directory, ignore_errors=True)
    for restart in (1, 2):
        shutil.rmtree(f"{made.run_directory}-{restart}", ignore_errors=True)


@pytest.mark.job
@pytest.mark.usefixtures("default_signals")
def test_a_job_gives_what_one_process_gives(tmp_path: Path, cluster: Cluster) -> None:
    command = write_script(tmp_path, TRAIN_BY_HAND)
    on = (*shown_on("kubernetes"), *STOCK, "--hosts", str(cluster.pods_file))
    there = run(tmp_path, *on, "--", *command, env=cluster.environment)
    assert there.returncode == 0, there.stderr + there.stdout
    assert fingerprints(cluster.run_directory) == trained_alone()
    assert "[worker-1] done 1" in there.stdout
    made = run_directory(there.stderr)
    assert "done 1" in (made / "logs" / "worker-1.log").read_text()
    roles = {row["name"]: row["exit_status"] for row in read_json(made / "summary.json")["roles"]}
    assert roles == {"scheduler": 0, "server-0": 0, "worker-0": 0, "worker-1": 0}
    assert cluster.left() == []


@pytest.mark.job
@pytest.mark.usefixtures("default_signals")
def test_pods_of_a_jobset_are_ranks(tmp_path: Path, cluster: Cluster) -> None:
    script = 'echo "rank $RANK of $WORLD_SIZE, restart $BYTEPROPHET_RESTART, $MASTER_ADDR"'
    arguments = ["--jobset", "--servers", "0", "--", "sh", "-c", script]
    done = run(tmp_path, *cluster.arguments, *arguments, env=cluster.environment)
    assert done.returncode == 0, done.stderr + done.stdout
    for rank in range(2):
        assert f"[worker-{rank}] rank {rank} of 2, restart 0, 127.0.0.1" in done.stdout
    assert cluster.left() == []


@pytest.mark.job(3)
@pytest.mark.parametrize("killed", killed_by_default("scheduler"))
@pytest.mark.usefixtures("default_signals")
def test_each_killed_role_is_named_and_nothing_is_left(
    tmp_path: Path, cluster: Cluster, killed: Sequence[str]
) -> None:
    mark = str(cluster.run_directory)
    each_killed_role_is_named(
        tmp_path, cluster.arguments, cluster.environment, cluster.left, mark, killed=killed
    )
    errors = (tmp_path / "errors").read_text()
    assert f"(pod {cluster.name}-scheduler-0-x0 on node node-1)" in errors


@pytest.mark.job
@pytest.mark.usefixtures("default_signals")
def test_a_killed_rank_is_named_and_the_job_starts_again(tmp_path: Path, cluster: Cluster) -> None:
    script = "test $BYTEPROPHET_RESTART = 1 && exit 0; echo training $RANK; exec sleep 1000"
    arguments = ["--restarts", "1", "--servers", "0", "--", "sh", "-c", script]
    command = [*RUN, *cluster.arguments, *arguments]
    job = Started(command, tmp_path, 2, cluster.environment)
    os.kill(process_of("worker-1", str(cluster.run_directory)), signal.SIGKILL)
    status, said = job.end(2 * NAMED_S)
    errors = job.errors.read_text()
    assert status == 0, errors
    assert "warning: kubectl: worker-1 was killed by signal 9 (SIGKILL) after " in errors
    assert f"(pod {cluster.name}-worker-1-x1 on node node-1)" in errors
    assert "the job starts again (restart 1 of 1)" in errors
    assert said.startswith("byteprophet: done after ")
    assert cluster.left() == []


@pytest.mark.job
@pytest.mark.usefixtures("default_signals")
def test_a_job_of_the_same_name_is_left_alone(tmp_path: Path, cluster: Cluster) -> None:
    job = Started([*RUN, *cluster.arguments, *STAY], tmp_path, 2, cluster.environment)
    again = run(tmp_path, *cluster.arguments, "--", "true", env=cluster.environment)
    assert again.returncode == 2
    assert "--apply: the cluster does not take the job: Error from server (AlreadyExists)" in (
        again.stderr
    )
    assert len(processes_below(str(cluster.run_directory))) >= 2
    job.process.send_signal(signal.SIGTERM)
    assert job.end(NAMED_S)[0] == 143
    assert cluster.left() == []


@pytest.mark.job
@pytest.mark.usefixtures("default_signals")
def test_pods_end_with_the_launcher(tmp_path: Path, cluster: Cluster) -> None:
    job = Started([*RUN, *cluster.arguments, *STAY], tmp_path, 2, cluster.environment)
    job.process.send_signal(signal.SIGKILL)
    assert job.end(NAMED_S)[0] == -signal.SIGKILL
    wait_until_gone(cluster.left, NAMED_S)
