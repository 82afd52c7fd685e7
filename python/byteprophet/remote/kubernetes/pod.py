"""A pod of a job, as the cluster describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from byteprophet.errors import JobFailed
from byteprophet.input_files import parse_json

COMPONENT = "app.kubernetes.io/component"
"""A label: which kind of role a pod runs."""
CONTAINER = "role"
"""The name of the container that runs it."""
_INDEX = "batch.kubernetes.io/job-completion-index"


def role_of(kind: str, index: int | str) -> str:
    """The name of a role, such as "worker-1". There is one scheduler."""
    return kind if kind == "scheduler" else f"{kind}-{index}"


@dataclass(frozen=True)
class Pod:
    """A pod as the cluster describes it.

    Attributes:
        role: the role that it runs, such as "worker-1".
        name, node: its own name, and its node's; "": it has no node yet.
        phase: Pending, Running, Succeeded, Failed or Unknown.
        waits: why the role's container has not started; "": it has, or nothing is known.
        hint: what the cluster says about that.
        status: the exit status of the role's container; None: it has not ended.
        reason: why the pod or this container ended, such as OOMKilled.
    """

    role: str
    name: str
    node: str
    phase: str
    waits: str
    hint: str
    status: int | None
    reason: str

    @classmethod
    def parse(cls, item: Mapping[str, Any]) -> Pod:
        """A pod of ``kubectl get pods --output json``.

        The cluster may have put other containers into it, such as a mesh's proxy.
        """
        metadata, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
        marks = {**metadata.get("annotations", {}), **metadata.get("labels", {})}
        kind = marks.get(COMPONENT, "")
        containers = status.get("containerStatuses") or []
        own = [each for each in containers if each.get("name") == CONTAINER]
        state = own[0].get("state", {}) if own else {}
        ended, waiting = state.get("terminated"), state.get("waiting", {})
        conditions = status.get("conditions", [])
        unscheduled = [each for each in conditions if each.get("reason") == "Unschedulable"]
        told = unscheduled[0] if unscheduled else waiting
        return cls(
            role=role_of(kind, marks.get(_INDEX, "?")),
            name=metadata["name"],
            node=spec.get("nodeName", ""),
            phase=status.get("phase", "Unknown"),
            waits=told.get("reason", ""),
            hint=told.get("message", ""),
            status=None if ended is None else int(ended.get("exitCode", 1)),
            reason=status.get("reason") or (ended or {}).get("reason", ""),
        )

    @property
    def has_started(self) -> bool:
        """Whether the role has a log."""
        return self.status is not None or (self.phase == "Running" and not self.waits)

    @property
    def has_failed(self) -> bool:
        """Whether the role has; a container beside it may fail after its good end."""
        if self.status == 0 and self.reason == "Completed":
            return False
        return self.phase == "Failed" or self.status not in (None, 0)

    @property
    def place(self) -> str:
        """Where it runs, for people."""
        return f"pod {self.name}" + (f" on node {self.node}" if self.node else "")


def parse_pods(text: str) -> list[Pod]:
    """The pods in ``text``, of ``kubectl get pods --output json``. Raises ``JobFailed``."""
    try:
        items = parse_json(text)["items"]
        return [Pod.parse(item) for item in items]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JobFailed(f"kubectl get pods: cannot be understood: {error!r}") from None
