"""Checks objects of Kubernetes by the schemas that are published for them.

Those of Kubernetes itself are in the package kubernetes-validate. JobSet is an extension with an
API of its own, which does not come with any package: ``_JOBSET`` has the fields of version v1alpha2
(https://github.com/kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go). The Jobs in a
JobSet are Kubernetes' own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

Object = dict[str, Any]
_TEXT = {"type": "string", "minLength": 1}
_NUMBER = {"type": "integer", "minimum": 0}
_FLAG = {"type": "boolean"}
_NAMES = {"type": "array", "items": _TEXT}


def _table(required: Sequence[str], **fields: object) -> Object:
    return {
        "type": "object",
        "properties": fields,
        "required": list(required),
        "additionalProperties": False,
    }


_RULE = _table(
    ["action"],
    name=_TEXT,
    action={
        "enum": [
            "FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob",
            "RestartJobAndIgnoreMaxRestarts",
        ]
    },
    onJobFailureReasons=_NAMES,
    onJobFailureMessagePatterns=_NAMES,
    targetReplicatedJobs=_NAMES,
)  # fmt: skip
_REPLICATED_JOB = _table(
    ["name", "template"],
    name=_TEXT,
    groupName=_TEXT,
    template=_table(["spec"], metadata={"type": "object"}, spec={"type": "object"}),
    replicas=_NUMBER,
    dependsOn={
        "type": "array",
        "maxItems": 5,
        "items": _table(["name", "status"], name=_TEXT, status={"enum": ["Ready", "Complete"]}),
    },
)
_JOBSET = _table(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata={"type": "object", "required": ["name"]},
    spec=_table(
        ["replicatedJobs"],
        replicatedJobs={"type": "array", "items": _REPLICATED_JOB, "minItems": 1},
        network=_table(
            [], enableDNSHostnames=_FLAG, subdomain=_TEXT, publishNotReadyAddresses=_FLAG
        ),
        successPolicy=_table(
            ["operator"], operator={"enum": ["All", "Any"]}, targetReplicatedJobs=_NAMES
        ),
        failurePolicy=_table(
            [],
            maxRestarts=_NUMBER,
            restartStrategy={"enum": ["Recreate", "BlockingRecreate", "InPlaceRestart"]},
            rules={"type": "array", "items": _RULE},
        ),
        startupPolicy=_table(
            ["startupPolicyOrder"], startupPolicyOrder={"enum": ["AnyOrder", "InOrder"]}
        ),
        suspend=_FLAG,
        coordinator=_table(
            ["replicatedJob"], replicatedJob=_TEXT, jobIndex=_NUMBER, podIndex=_NUMBER
        ),
        managedBy=_TEXT,
        ttlSecondsAfterFinished=_NUMBER,
        volumeClaimPolicies={"type": "array"},
    ),
)


def check_objects(objects: Sequence[Object]) -> list[Object]:
    """Fails for an object that its schema does not allow. Returns all Jobs, those of JobSets, too.

    Skips the test where the schemas are not installed.
    """
    schemas = pytest.importorskip("kubernetes_validate")
    checked = [each for each in objects if each["kind"] != "JobSet"]
    for jobset in (each for each in objects if each["kind"] == "JobSet"):
        check_jobset(jobset)
        checked += [
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]},
             "spec": job["template"]["spec"]}
            for job in jobset["spec"]["replicatedJobs"]
        ]  # fmt: skip
    for each in checked:
        schemas.validate(each, schemas.latest_version(), strict=True)
    return [each for each in checked if each["kind"] == "Job"]


def check_jobset(jobset: Mapping[str, Any]) -> None:
    """Fails unless its fields are those of the API, and the jobs that it names are its own."""
    pytest.importorskip("jsonschema").validate(jobset, _JOBSET)
    names = [job["name"] for job in jobset["spec"]["replicatedJobs"]]
    assert len(set(names)) == len(names)
    assert set(jobset["spec"]["successPolicy"]["targetReplicatedJobs"]) <= set(names)
