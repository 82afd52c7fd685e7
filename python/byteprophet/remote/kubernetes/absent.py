"""Finds roles without a pod: those that the cluster does not create, and those that have gone."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from byteprophet.errors import JobFailed, one_line
from byteprophet.input_files import parse_json
from byteprophet.remote.kubernetes.follower import say
from byteprophet.remote.kubernetes.pod import Pod, role_of

_TOLD_S = 30.0
_LIMIT_S = 600.0  # a quota may be free again by then
_GONE_LOOKS = 2
_MOST_NAMES = 4
_NOTHING = "the cluster does not say why (does its controller of Jobs, or of JobSets, run?)"

Kubectl = Callable[..., "subprocess.CompletedProcess[str]"]


class Absent:
    """What is known of roles without a pod.

    Args:
        name: of the job's objects.
        counts: how many pods run each kind of role.
        manifests: the file with all objects.
        kubectl: runs kubectl with its arguments.
    """

    def __init__(
        self, name: str, counts: Mapping[str, int], manifests: str, kubectl: Kubectl
    ) -> None:
        self._roles = [
            role_of(kind, index) for kind, count in counts.items() for index in range(count)
        ]
        # Plain Jobs, a JobSet, and the Jobs that its controller makes.
        self._owners = {name, *(f"{name}-{kind}{end}" for kind in counts for end in ("", "-0"))}
        self._manifests = manifests
        self._kubectl = kubectl
        self._seen: dict[str, Pod] = {}
        self._missed: dict[str, int] = {}  # good looks in a row without the pod that was seen
        self._is_told = False
        self._started_s = time.monotonic()
        self._limit_s = self._started_s + _LIMIT_S

    def check(self, pods: Sequence[Pod], ended: Collection[str]) -> None:
        """Looks at all ``pods`` that there are; the roles in ``ended`` need none any more.

        Raises ``JobFailed`` if a pod has gone, or is not created within the limit. Says once
        before that that there is none.
        """
        here = {pod.role: pod for pod in pods}
        self._seen.update(here)
        gone = [role for role in self._seen if role not in here and role not in ended]
        self._missed = {role: self._missed.get(role, 0) + 1 for role in gone}
        for role, looks in self._missed.items():
            if looks >= _GONE_LOOKS:
                raise JobFailed(
                    f"{role} ({self._seen[role].place}) has gone: its pod was deleted, or its node "
                    "was drained or lost"
                )
        missing = [role for role in self._roles if role not in self._seen]
        if missing:
            self._check_missing(missing)

    def _check_missing(self, missing: Sequence[str]) -> None:
        now_s = time.monotonic()
        waited_s = now_s - self._started_s
        is_late = now_s > self._limit_s
        if waited_s <= _TOLD_S or (self._is_told and not is_late):
            return
        is_suspended = self._is_suspended()
        reason = "it is suspended, as by a queue" if is_suspended else self._event() or _NOTHING
        text = f"after {waited_s:.0f} s, there is no pod for {_some(missing)}: {one_line(reason)}"
        if is_late and not is_suspended:
            raise JobFailed(text)
        if not self._is_told:
            self._is_told = True
            say(f"byteprophet: {text}")
        if is_late:  # a queue may hold it for as long as it likes
            self._limit_s = now_s + _LIMIT_S

    def _is_suspended(self) -> bool:
        items = self._items("get", "--filename", self._manifests, "--output", "json")
        return any((item.get("spec") or {}).get("suspend") is True for item in items)

    def _event(self) -> str:
        """The last warning about the job's objects; "": there is none."""
        items = self._items("get", "events", "--field-selector", "type=Warning", "--output", "json")
        own = [
            each for each in items if (each.get("involvedObject") or {}).get("name") in self._owners
        ]
        if not own:
            return ""
        last = max(own, key=_event_time)
        return f"{last.get('reason', '')}: {last.get('message', '')}"

    def _items(self, *arguments: str) -> list[dict[str, Any]]:
        """The objects that kubectl prints; none if it fails, e.g. because it may not see them."""
        done = self._kubectl(*arguments)
        try:
            items = parse_json(done.stdout)["items"] if done.returncode == 0 else []
        except (ValueError, KeyError, TypeError):
            return []
        return [item for item in items if isinstance(item, dict)]


def _event_time(event: Mapping[str, Any]) -> str:
    return event.get("lastTimestamp") or event.get("eventTime") or ""


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {rest} others" if rest > 0 else "")
