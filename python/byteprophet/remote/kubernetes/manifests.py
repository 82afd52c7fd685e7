"""A job as objects of Kubernetes: a ConfigMap with the job file, and pods that run its roles.

    plain      ConfigMap, Service, and one Job per kind of role (scheduler, server, worker)
    JobSet     ConfigMap, and a JobSet of these Jobs (https://jobset.sigs.k8s.io)

Every Job is indexed, and a pod's index is the number of its role. A pod runs one command,
``byteprophet role KIND --job FILE --index N``. The job file names the root by its pod's name, which
the Service, or the JobSet's own, leads to an address.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from byteprophet.errors import UserError
from byteprophet.input_files import read_text
from byteprophet.launcher.job_file import Address, JobFile, job_text
from byteprophet.launcher.one_role import JOBSET_RESTART
from byteprophet.launcher.spec import JobSpec
from byteprophet.remote.client_limits import ENDING_S
from byteprophet.remote.job import FILES, carried_environment
from byteprophet.remote.kubernetes.pod import COMPONENT, CONTAINER
from byteprophet.remote.kubernetes.pods_file import EXAMPLE_IMAGE, PodsFile, RolePods

INSTANCE = "app.kubernetes.io/instance"
"""A label of all objects: which job they are of."""
JOB_DIRECTORY = "/etc/byteprophet"
_SHM = "/dev/shm"  # noqa: S108 - of a container
_ROOT_PORT = 9000
_JOB_FILE = "job.toml"
_RESTART_LABEL = "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"
_MOST_BYTES = 1 << 20  # of a ConfigMap

Object = dict[str, Any]


def role_counts(spec: JobSpec) -> dict[str, int]:
    """How many pods run each kind of role, in the order of their start."""
    counts = {"scheduler": 0 if spec.all_reduce else 1, "server": spec.servers}
    return {kind: count for kind, count in {**counts, "worker": spec.workers}.items() if count}


def run_directory_in(pods: PodsFile) -> Path:
    """Where roles write in their containers."""
    return Path("/tmp") / pods.name  # noqa: S108 - of a container


def job_objects(pods: PodsFile, spec: JobSpec, jobset: bool, restarts: int = 0) -> list[Object]:
    """All objects of the job. Raises ``UserError`` for a file that pods cannot be given.

    ``restarts``: how often a JobSet starts all pods again after one of them has failed.
    """
    config = _config_map(pods, spec, jobset)
    grace_s = math.ceil(spec.limits.grace_s + ENDING_S)
    jobs = {
        kind: _job_spec(pods, kind, count, jobset, grace_s)
        for kind, count in role_counts(spec).items()
    }
    if jobset:
        return [config, _jobset(pods, restarts, jobs)]
    named = [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": _metadata(pods, f"{pods.name}-{kind}"),
            "spec": job,
        }
        for kind, job in jobs.items()
    ]
    return [config, _service(pods), *named]


def manifest_text(objects: list[Object]) -> str:
    """``objects`` as YAML, for kubectl and for people who add to it."""
    return "---\n".join(
        yaml.dump(each, Dumper=_Dumper, sort_keys=False, width=100) for each in objects
    )


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""

    def ignore_aliases(self, data: object) -> bool:
        """Two objects may have equal parts, which are written twice."""
        return True


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text_node)


def _config_map(pods: PodsFile, spec: JobSpec, jobset: bool) -> Object:
    environment, files = _files(carried_environment(spec))
    root = next(iter(role_counts(spec)))  # the scheduler's pod, or rank 0's
    host = f"{pods.name}-{root}-{'0-0' if jobset else '0'}.{pods.name}"
    spec = replace(
        spec,
        directory=Path(pods.directory or "."),
        run_directory=run_directory_in(pods),
        environment=environment,
    )
    job = JobFile(spec, Address(host, spec.port or _ROOT_PORT), None, "")
    data = {_JOB_FILE: job_text(job), **files}
    if sum(len(text.encode()) for text in data.values()) > _MOST_BYTES:
        raise UserError(f"{', '.join(data)}: are together larger than 1 MiB, a ConfigMap's limit")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(pods, pods.name),
        "data": data,
    }


def _files(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """``environment`` with the paths that files have in pods, and the files' texts by name."""
    changed, texts = dict(environment), {}
    for variable, name in FILES.items():
        if environment.get(variable):
            texts[name] = read_text(environment[variable])
            changed[variable] = f"{JOB_DIRECTORY}/{name}"
    return changed, texts


def _metadata(pods: PodsFile, name: str) -> Object:
    place = {} if pods.namespace is None else {"namespace": pods.namespace}
    return {"name": name, **place, "labels": {INSTANCE: pods.name}}


def _service(pods: PodsFile) -> Object:
    """Leads the names of pods to their addresses, from before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(pods, pods.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {INSTANCE: pods.name},
        },
    }


def _jobset(pods: PodsFile, restarts: int, jobs: Mapping[str, Object]) -> Object:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(pods, pods.name),
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": pods.name,
                "publishNotReadyAddresses": True,
            },
            "failurePolicy": {"maxRestarts": restarts},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": ["worker"]},
            "replicatedJobs": [
                {"name": kind, "replicas": 1, "template": {"spec": job}}
                for kind, job in jobs.items()
            ],
        },
    }


def _job_spec(pods: PodsFile, kind: str, count: int, jobset: bool, grace_s: int) -> Object:
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimit": 0,
        "template": {
            "metadata": {"labels": {INSTANCE: pods.name, COMPONENT: kind}},
            "spec": {"terminationGracePeriodSeconds": grace_s, **_pod_spec(pods, kind, jobset)},
        },
    }


def _pod_spec(pods: PodsFile, kind: str, jobset: bool) -> Object:
    own = {"worker": pods.worker, "server": pods.server}.get(kind, RolePods())
    role = ["byteprophet", "role", kind, "--job", f"{JOB_DIRECTORY}/{_JOB_FILE}"]
    container: Object = {
        "name": CONTAINER,
        "image": pods.image or EXAMPLE_IMAGE,
        "command": [*role, "--index", "$(JOB_COMPLETION_INDEX)"],
        "volumeMounts": [{"name": "job", "mountPath": JOB_DIRECTORY}],
    }
    volumes: list[Object] = [{"name": "job", "configMap": {"name": pods.name}}]
    if jobset:
        label = {"fieldRef": {"fieldPath": _RESTART_LABEL}}
        container["env"] = [{"name": JOBSET_RESTART, "valueFrom": label}]
    if own.limits:
        container["resources"] = {"limits": dict(own.limits)}
    if kind == "worker":
        limit = {} if pods.shared_memory is None else {"sizeLimit": pods.shared_memory}
        memory = {"medium": "Memory", **limit}
        container["volumeMounts"].append({"name": "shared-memory", "mountPath": _SHM})
        volumes.append({"name": "shared-memory", "emptyDir": memory})
        for number, (path, claim) in enumerate(pods.volumes.items()):
            container["volumeMounts"].append({"name": f"volume-{number}", "mountPath": path})
            volumes.append(
                {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}}
            )
    spec: Object = {"restartPolicy": "Never", "enableServiceLinks": False}
    if not jobset:  # which gives one itself
        spec["subdomain"] = pods.name
    if own.node_selector:
        spec["nodeSelector"] = dict(own.node_selector)
    return {**spec, "containers": [container], "volumes": volumes}
