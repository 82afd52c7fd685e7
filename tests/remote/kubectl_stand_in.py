"""A cluster that is this machine, behind those commands of kubectl that byteprophet uses.

Pods run as a kubelet would run them: the same command with its variables expanded, the same
environment and nothing else, the ConfigMap where it is mounted, a /dev/shm of their own, and names
of pods that lead to an address. Each pod has a mount namespace for that. All share the loopback
interface. KUBECTL_STATE is the directory with all that there is, and KUBECTL_WORKDIR is the working
directory of every image.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

STATE = Path(os.environ.get("KUBECTL_STATE", "/nowhere"))
_INSTANCE = "app.kubernetes.io/instance"
_INDEX = "batch.kubernetes.io/job-completion-index"
_RESTART = "jobset.sigs.k8s.io/restart-attempt"
_VARIABLE = re.compile(r"\$\(([A-Z_]+)\)")
_MOUNTS = 'mount --bind "$1" /etc && mount -t tmpfs tmpfs /dev/shm && shift && exec "$@"'


def create(text: str, is_only_tried: bool) -> None:
    """Creates all objects, and prints their names. Refuses what there is already."""
    import yaml  # only here: this file is started for each look at the pods

    objects = list(yaml.safe_load_all(text))
    names = [f"{each['kind'].lower()}/{each['metadata']['name']}" for each in objects]
    for name in names:
        if (STATE / "objects" / name).exists():
            sys.exit(f"Error from server (AlreadyExists): {name} already exists")
    if is_only_tried:
        return
    for name in names:
        (STATE / "objects" / name).mkdir(parents=True)
        print(name, flush=True)
    maps = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ConfigMap"}
    etc = STATE / "etc"
    if not etc.exists():
        shutil.copytree("/etc", etc, symlinks=True, ignore_dangling_symlinks=True)
    pods = [
        {**pod, "owner": name}
        for name, each in zip(names, objects, strict=True)
        for pod in pods_of(each)
    ]
    hosts = "".join(
        f"127.0.0.1 {pod['hostname']} {pod['hostname']}.{pod['subdomain']}\n" for pod in pods
    )
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
    for pod in pods:
        mount_config(pod["spec"], maps, etc)
        directory = STATE / "pods" / pod["name"]
        directory.mkdir(parents=True)
        (directory / "pod.json").write_text(json.dumps(pod))
        (directory / "log").touch()
        subprocess.Popen(
            [sys.executable, __file__, "pod", str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def pods_of(each: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods of a Job, or of all Jobs of a JobSet; none of other objects."""
    name = each["metadata"]["name"]
    if each["kind"] == "Job":
        return pods_of_job(name, each["spec"], each["spec"]["template"]["spec"]["subdomain"], {})
    if each["kind"] == "JobSet":
        subdomain, marks = each["spec"]["network"]["subdomain"], {_RESTART: "0"}
        return [
            pod
            for job in each["spec"]["replicatedJobs"]
            for replica in range(job["replicas"])
            for pod in pods_of_job(
                f"{name}-{job['name']}-{replica}", job["template"]["spec"], subdomain, marks
            )
        ]
    return []


def pods_of_job(
    name: str, spec: dict[str, Any], subdomain: str, marks: dict[str, str]
) -> list[dict[str, Any]]:
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    labels = spec["template"]["metadata"]["labels"]
    return [
        {
            "name": f"{name}-{index}-x{index}",
            "hostname": f"{name}-{index}",
            "subdomain": subdomain,
            "labels": {**labels, **marks, _INDEX: str(index)},
            "spec": spec["template"]["spec"],
        }
        for index in range(spec["completions"])
    ]


def mount_config(spec: dict[str, Any], maps: dict[str, Any], etc: Path) -> None:
    named = {v["name"]: v["configMap"]["name"] for v in spec["volumes"] if "configMap" in v}
    for mount in spec["containers"][0]["volumeMounts"]:
        if mount["name"] in named:
            directory = etc / Path(mount["mountPath"]).relative_to("/etc")
            directory.mkdir(exist_ok=True)
            for file, text in maps[named[mount["name"]]]["data"].items():
                (directory / file).write_text(text)


def run_pod(directory: Path) -> None:
    """What a kubelet does for one pod, to its end."""
    pod = json.loads((directory / "pod.json").read_text())
    (container,) = pod["spec"]["containers"]
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": "/root",
        "HOSTNAME": pod["hostname"],
        "JOB_COMPLETION_INDEX": pod["labels"][_INDEX],
    }
    for each in container.get("env", []):
        environment[each["name"]] = value_of(each, pod["labels"])
    command = [_VARIABLE.sub(lambda found: environment[found[1]], w) for w in container["command"]]
    inside = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _MOUNTS, "sh"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*inside, str(STATE / "etc"), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=os.environ["KUBECTL_WORKDIR"],
            env=environment,
        )
        (directory / "pid").write_text(str(process.pid))
        status = process.wait()
    (directory / "exit").write_text(str(status if status >= 0 else 128 - status))


def value_of(variable: dict[str, Any], labels: dict[str, str]) -> str:
    if "value" in variable:
        return str(variable["value"])
    path = variable["valueFrom"]["fieldRef"]["fieldPath"]
    found = re.fullmatch(r"metadata\.labels\['(.*)'\]", path)
    assert found is not None
    return labels[found[1]]


def get_pods(selector: str) -> str:
    name, _, value = selector.partition("=")
    items = []
    for directory in sorted((STATE / "pods").glob("*")):
        pod = json.loads((directory / "pod.json").read_text())
        if pod["labels"].get(name) == value:
            items.append(
                {
                    "metadata": {"name": pod["name"], "labels": pod["labels"]},
                    "spec": {"nodeName": "node-1"},
                    "status": status_of(directory),
                }
            )
    return json.dumps({"items": items})


def status_of(directory: Path) -> dict[str, Any]:
    if not (directory / "exit").exists():
        phase = "Running" if (directory / "pid").exists() else "Pending"
        return {"phase": phase}
    status = int((directory / "exit").read_text() or "0")
    state = {"terminated": {"exitCode": status, "reason": "Error" if status else "Completed"}}
    phase = "Failed" if status else "Succeeded"
    return {"phase": phase, "containerStatuses": [{"name": "role", "state": state}]}


def follow(name: str, is_resumed: bool) -> None:
    """Prints the lines of a pod with their times until the pod ends.

    ``is_resumed``: whoever asks has read all lines that there are.
    """
    directory, rest = STATE / "pods" / name, b""
    with (directory / "log").open("rb") as log:
        log.seek(0, os.SEEK_END if is_resumed else os.SEEK_SET)
        is_over = False
        while not is_over:
            is_over = (directory / "exit").exists()
            *lines, rest = (rest + log.read()).split(b"\n")
            if is_over and rest:
                lines.append(rest)
            stamp = datetime.now(timezone.utc).isoformat().encode()
            sys.stdout.buffer.write(b"".join(stamp + b" " + line + b"\n" for line in lines))
            sys.stdout.buffer.flush()
            time.sleep(0.05)


def delete(names: list[str]) -> None:
    """Ends the pods of these objects: SIGTERM to the first process of each, then waits."""
    for name in names:
        (STATE / "objects" / name).rmdir()
    owned = [path for path in (STATE / "pods").glob("*") if owner(path) in names]
    pods = [path.name for path in owned]
    for name in pods:
        directory = STATE / "pods" / name
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((directory / "pid").read_text()), signal.SIGTERM)
    for name in pods:
        directory, deadline_s = STATE / "pods" / name, time.monotonic() + 10
        while directory.exists() and not (directory / "exit").exists():
            assert time.monotonic() < deadline_s, name
            time.sleep(0.05)
        shutil.rmtree(directory, ignore_errors=True)


def owner(directory: Path) -> str:
    return str(json.loads((directory / "pod.json").read_text())["owner"])


def main(arguments: list[str]) -> None:
    words = [word for word in arguments if word not in ("--ignore-not-found", "--wait=false")]
    if words[0] == "pod":
        run_pod(Path(words[1]))
    elif words == ["create", "--dry-run=server", "--filename", "-"]:
        create(sys.stdin.read(), is_only_tried=True)
    elif words[:2] == ["create", "--filename"] and words[3:] == ["--output", "name"]:
        create(Path(words[2]).read_text(), is_only_tried=False)
    elif words[:2] == ["get", "pods"]:
        print(get_pods(words[words.index("--selector") + 1]))
    elif words[:5] == ["logs", "--follow", "--timestamps", "--container", "role"]:
        follow(words[5], "--since-time" in words)
    elif words[0] == "delete":
        delete(words[1:])
    else:
        sys.exit(f"error: unknown command {words}")


if __name__ == "__main__":
    main(sys.argv[1:])
