"""The files in launcher/ start the roles that they name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet.input_files import read_json
from byteprophet.launcher.checks import LOOPBACK, root_port
from byteprophet.launcher.job_file import parse_job, read_job_file

from .jobs import NO_FORKS, TRAIN_BY_HAND, fingerprints, trained_alone, write_script
from .schemas import check_objects

LAUNCHER = Path(__file__).parents[2] / "launcher"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
ENVIRONMENT = {**os.environ, **NO_FORKS, "PATH": PATH}


def config_map(name: str) -> str:
    """The job file in the ConfigMap of Kubernetes."""
    text = (LAUNCHER / "kubernetes" / name).read_text()
    found = re.search(r"  job.toml: \|\n((?:    .*\n)+)", text)
    assert found is not None
    return re.sub(r"^    ", "", found[1], flags=re.MULTILINE)


def local_job(tmp_path: Path, text: str) -> Path:
    """The job in ``text`` with an address, a command and directories of this machine."""
    own = {
        "root": f'"{LOOPBACK}:{root_port(None, LOOPBACK)}"',
        "command": str(write_script(tmp_path, TRAIN_BY_HAND)).replace("'", '"'),
        "directory": f'"{tmp_path}"',
        "run_directory": f'"{tmp_path / "run"}"',
    }
    for name, value in own.items():
        text, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
        assert count == 1, name
    path = tmp_path / "job.toml"
    path.write_text(f'{text}scheduler = "stock"\n')
    return path


def run_all(commands: list[list[str]], tmp_path: Path) -> None:
    roles = [
        subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command in commands
    ]
    said = [role.communicate(timeout=120)[0] for role in roles]
    assert [role.returncode for role in roles] == [0] * len(roles), "".join(said)
    assert fingerprints(tmp_path / "run") == trained_alone()


@pytest.mark.job
def test_the_scripts_start_a_job(tmp_path: Path) -> None:
    job = str(local_job(tmp_path, (LAUNCHER / "job.toml").read_text()))
    scripts = [["start_worker", job, "1"], ["start_scheduler", job], ["start_worker", job, "0"]]
    commands = [*scripts, ["start_server", job, "0", "--interface", "lo"]]
    run_all([[str(LAUNCHER / words[0]), *words[1:]] for words in commands], tmp_path)
    assert read_json(tmp_path / "run" / "summary-server-0.json")["status"] == "done"


@pytest.mark.parametrize("script", ["start_scheduler", "start_server", "start_worker"])
def test_a_script_says_what_it_needs(script: str) -> None:
    done = subprocess.run([LAUNCHER / script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"usage: {script} JOB.TOML" in done.stderr


def pods(name: str) -> list[list[str]]:
    """The command of every pod in a manifest."""
    yaml = pytest.importorskip("yaml")
    objects = list(yaml.safe_load_all((LAUNCHER / "kubernetes" / name).read_text()))
    replicated = objects[0]["spec"].get("replicatedJobs", [])
    jobs = [each["template"]["spec"] for each in replicated]
    jobs += [each["spec"] for each in objects if each["kind"] == "Job"]
    return [
        [
            word.replace("$(JOB_COMPLETION_INDEX)", str(index))
            for word in job["template"]["spec"]["containers"][0]["command"]
        ]
        for job in jobs
        for index in range(job["completions"])
    ]


def test_the_pods_of_both_manifests_run_what_the_scripts_run(tmp_path: Path) -> None:
    """So one job shows that both start one. Their job files differ in names and folders only."""
    assert pods("jobset.yaml") == pods("jobs.yaml")
    stand_in = tmp_path / "byteprophet"
    stand_in.write_text('#!/bin/sh\nfor word in byteprophet "$@"; do echo "$word"; done\n')
    stand_in.chmod(0o755)
    job = "/etc/byteprophet/job.toml"
    scripts = [["start_scheduler", job, "--index", "0"], ["start_server", job, "0"]]
    scripts += [["start_worker", job, str(index)] for index in range(2)]
    run = [
        subprocess.run(
            [str(LAUNCHER / words[0]), *words[1:]],
            env={**ENVIRONMENT, "PATH": f"{tmp_path}:{PATH}"},
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout.splitlines()
        for words in scripts
    ]  # fmt: skip
    assert pods("jobs.yaml") == run
    (tmp_path / "job.toml").write_text(config_map("config.yaml"))
    ours, theirs = read_job_file(LAUNCHER / "job.toml"), read_job_file(tmp_path / "job.toml")
    same = {"directory": ours.spec.directory, "run_directory": ours.spec.run_directory}
    assert replace(theirs.spec, **same) == ours.spec


def test_the_job_files_are_valid(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(config_map("config.yaml"))
    assert read_job_file(path).root.host == "train-scheduler-0-0.train"
    assert read_job_file(LAUNCHER / "job.toml").spec.workers == 2


def test_batch_scripts_run_what_readers_are_told() -> None:
    scripts = [*(LAUNCHER / "slurm").glob("*.sbatch")]
    assert scripts
    for path in scripts:
        text = path.read_text()
        assert text.splitlines()[-1] == "exec byteprophet run --on slurm -- python train.py"
        assert subprocess.run(["sh", "-n", path], check=False).returncode == 0


@pytest.mark.parametrize("name", ["jobs.yaml", "jobset.yaml"])
def test_the_manifests_are_valid_and_as_run_prints_them(name: str) -> None:
    yaml = pytest.importorskip("yaml")
    from byteprophet.remote.kubernetes.manifests import job_objects, manifest_text
    from byteprophet.remote.kubernetes.pods_file import PodsFile

    job = read_job_file(LAUNCHER / "job.toml").spec
    config, *others = job_objects(PodsFile(None, "train"), job, name == "jobset.yaml")
    text = (LAUNCHER / "kubernetes" / name).read_text()
    assert re.sub(r"^#.*\n", "", text, flags=re.MULTILINE) == manifest_text(others)
    own = (LAUNCHER / "kubernetes" / "config.yaml").read_text()
    assert yaml.safe_load(own)["metadata"] == config["metadata"]
    root = parse_job(config["data"]["job.toml"], "job.toml").root
    assert f'"{root.host}:{root.port}"' in (own if name == "jobset.yaml" else text)
    texts = [(LAUNCHER / "kubernetes" / each).read_text() for each in ("config.yaml", name)]
    objects = [each for text in texts for each in yaml.safe_load_all(text)]
    assert len(check_objects(objects)) == 3
