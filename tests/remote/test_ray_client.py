"""The client of a job in a Ray cluster, with a Ray that answers as it is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.errors import JobFailed, UserError
from byteprophet.launcher.job_file import Address
from byteprophet.remote.placement import Unit
from byteprophet.remote.ray_cluster import client
from byteprophet.remote.ray_cluster.actor import RoleActor

NO_CLUSTER = """
def init(**options):
    raise ConnectionError("Could not find any running Ray instance.")
"""


class RayError(Exception):
    pass


def ray_without(late: str) -> Any:
    """A Ray whose calls are the names of their roles; ``late`` has not answered."""

    def wait(calls: list[str], **_: object) -> tuple[list[str], list[str]]:
        return [call for call in calls if call != late], [call for call in calls if call == late]

    errors = SimpleNamespace(RayError=RayError, ActorUnavailableError=RayError)
    return SimpleNamespace(wait=wait, exceptions=errors)


@pytest.fixture
def late_client(monkeypatch: pytest.MonkeyPatch) -> client.Client:
    """Of two workers, of which the second does not answer."""
    monkeypatch.setitem(sys.modules, "ray", ray_without("worker-1"))
    monkeypatch.setattr(client, "parse_job", lambda *_: SimpleNamespace(spec=None))
    monkeypatch.setattr(client, "replace", lambda *_, **__: None)
    monkeypatch.setattr(client, "JobFile", lambda *_: None)
    monkeypatch.setattr(client, "job_text", lambda _: "")
    task = client.Task("", [], [], 0, 2, 1, [], ["/a", "/b"], "run", None)
    made = client.Client(task)
    for index in range(2):
        call = SimpleNamespace(remote=lambda *_, name=f"worker-{index}": name)
        actor = SimpleNamespace(look=call, start=call)
        made._roles.append(client._Role(Unit("worker", index), actor))
    return made


@pytest.mark.parametrize(
    ("begin", "error"),
    [
        (lambda made: made._look(), UserError),
        (lambda made: made._start(Address("127.0.0.1", 1)), JobFailed),
    ],
    ids=["look", "start"],
)
def test_a_role_that_does_not_answer_is_named(
    begin: Callable[[client.Client], object], error: type[Exception], late_client: client.Client
) -> None:
    with pytest.raises(error, match="no answer for 60 s from worker-1"):
        begin(late_client)


def test_a_node_of_another_version_is_named(late_client: client.Client) -> None:
    ray = late_client._ray
    ray.wait = lambda calls, **_: (calls, [])
    ray.get = lambda calls, **_: [({"version": "0.0.9"}, call) for call in calls]
    ray.nodes = lambda: [{"NodeID": "worker-0", "NodeManagerAddress": "10.0.0.2"}]
    with pytest.raises(UserError, match=r"node 10\.0\.0\.2: its byteprophet has another version"):
        late_client._look()


class Group:
    """A placement group for which there is room at the look ``room_at``.

    The user asks for the end at the look ``asked_at``; 0: never.
    """

    def __init__(self, made: client.Client, room_at: int, asked_at: int) -> None:
        self._made, self._room_at, self._asked_at = made, room_at, asked_at
        self.looks = 0
        self.is_removed = False

    def wait(self, timeout_s: float) -> bool:
        assert timeout_s <= 1.0
        self.looks += 1
        if self.looks == self._asked_at:
            self._made._note()
        return self.looks == self._room_at


@pytest.mark.parametrize(
    ("room_at", "asked_at", "looks", "started"),
    [(3, 2, 2, False), (2, 2, 2, False), (3, 0, 3, True)],
    ids=["before there is room", "when there is room", "never"],
)
@pytest.mark.usefixtures("default_signals")
def test_who_asks_for_the_end_before_the_start_starts_nothing(
    room_at: int, asked_at: int, looks: int, started: bool,
    late_client: client.Client, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    group = Group(late_client, room_at, asked_at)
    util = SimpleNamespace(
        placement_group=lambda *_, **__: group,
        remove_placement_group=lambda group: setattr(group, "is_removed", True),
    )
    monkeypatch.setitem(sys.modules, "ray.util", util)
    starts: list[str] = []
    for name in ("_make_actors", "_look", "_end", "_bundles"):
        monkeypatch.setattr(late_client, name, lambda *_: None)
    monkeypatch.setattr(late_client, "_connected", nullcontext)
    monkeypatch.setattr(late_client, "_start", lambda _: starts.append("roles"))
    monkeypatch.setattr(late_client, "_wait", lambda: True)
    assert late_client.run() == started
    assert starts == (["roles"] if started else [])
    assert (group.looks, group.is_removed) == (looks, True)


def test_links_are_listed_beside_files(tmp_path: Path) -> None:
    (tmp_path / "step-5").mkdir()
    (tmp_path / "step-5" / "model").write_text("5")
    (tmp_path / "latest").symlink_to("step-5")
    (tmp_path / "model").symlink_to("step-5/model")
    made = RoleActor()
    made._directory = tmp_path
    assert made.files() == [("step-5/model", 1)]
    assert made.links() == [("latest", "step-5"), ("model", "step-5/model")]


@pytest.mark.usefixtures("default_signals")
def test_without_a_cluster_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "ray.py").write_text(NO_CLUSTER)
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    runs = tmp_path / "runs"
    assert run_cli(["run", "--on", "ray", "--runs", str(runs), "--", "true"]) == 2
    assert "--on ray: no Ray cluster can be reached" in capsys.readouterr().err
    assert list(runs.iterdir()) == []
