"""The client of all roles of a job in a Ray cluster, as a program.

    python -m byteprophet.remote.ray_cluster.client TASK.json

It reserves a placement group, makes an actor per role in it, and starts the roles. It shows and
keeps their lines, waits until the workers have succeeded or any role has failed, and fetches their
files. SIGTERM ends the roles. If this process is killed, Ray ends the actors, and so the roles.
Statuses: 0 done, 1 a role has failed, 2 the job cannot run there, 143 after SIGTERM.

One thread does everything. Each running actor has one call of ``lines`` in flight, which is
answered within a second or two. When a raylet ends, this process may hear of it in these ways:

    an actor does not answer                     or its node is slow
    an actor is unavailable                      Ray does not know yet what has become of it
    an actor has died                            with its node, which Ray's list of nodes says
    an actor's owner has died                    this process was connected to that raylet: Ray
                                                 ends its actors on all nodes

So the cause is told when Ray knows it, and a node that has ended is the cause, whichever actor was
the first to be lost.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from byteprophet.errors import Error, JobFailed, UserError, one_line
from byteprophet.input_files import read_json
from byteprophet.launcher.job_file import Address, JobFile, job_text, parse_job
from byteprophet.launcher.tether import Told
from byteprophet.remote.addresses import root_address
from byteprophet.remote.client_limits import ENDING_S, FETCH_TIMEOUT_S
from byteprophet.remote.echoes import with_role
from byteprophet.remote.fetching import fetching, partial_of
from byteprophet.remote.look import check_look, look_from
from byteprophet.remote.placement import Unit
from byteprophet.remote.ray_cluster.actor import RoleActor
from byteprophet.remote.verdicts import told_cause

_ROOM_TIMEOUT_S, _ROOM_LOOK_S = 60.0, 1.0
_CALL_TIMEOUT_S = 60.0
_LINES_S = 1.0
_SILENT_S = 4.0
_LOST_TIMEOUT_S = 40.0  # for Ray to say that a raylet has ended; by default it takes 15 to 20 s
_FIRST_CAUSE_S = 2.0  # for others to fail, too, of which one knows more
_FAREWELL_S = 15.0
_TERMINATED = 143


@dataclass(frozen=True)
class Task:
    """What a client does.

    Attributes:
        job: the text of a job file; its root is not known yet.
        units: kind and index of all roles, in the order of their start.
        bundles: of each role, the number of its bundle in the placement group.
        servers, workers: how many there are; each has a bundle, servers first.
        local_ranks: of each worker, which gets as many GPUs, if the cluster has any.
        paths: that all nodes must have.
        scratch: of each role, where it writes on its node.
        run_directory: of the job, here.
        port: of the root; None: a free one.
    """

    job: str
    units: list[tuple[str, int]]
    bundles: list[int]
    servers: int
    workers: int
    local_ranks: int
    paths: list[str]
    scratch: list[str]
    run_directory: str
    port: int | None


@dataclass
class _Role:
    """A role and its actor.

    Attributes:
        node: the address of its node, and its id in Ray.
        call: of ``lines``, in flight.
        heard_s: when the actor has answered last.
        next_s: not called again before this time.
        status: of the role that has ended.
        lost: why there will be no more answers.
    """

    unit: Unit
    actor: Any
    node: tuple[str, str] = ("", "")
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=100))
    call: Any = None
    heard_s: float = 0.0
    next_s: float = 0.0
    status: int | None = None
    lost: str = ""

    @property
    def is_running(self) -> bool:
        return self.status is None and not self.lost


class _Late(Exception):
    """Actors do not answer in time. The text names their roles."""


class _Asked(Exception):
    """Somebody has asked for the end before there was room for the job."""


class Client:
    """Runs one job to its end."""

    def __init__(self, task: Task) -> None:
        import ray

        self._ray: Any = ray
        self._task = task
        self._asked = False
        self._roles: list[_Role] = []
        self._logs = Path(task.run_directory) / "logs"
        self._node_id = ""  # of the node to which this process is connected

    def run(self) -> bool:
        """Run it. False: somebody has asked for the end.

        Raises ``UserError`` if it cannot run there, and ``JobFailed`` if a role has failed.
        """
        # After the import of Ray, which has set its own.
        signal.signal(signal.SIGTERM, self._note)
        with suppress(_Asked), self._connected(), self._room() as group:
            self._make_actors(group)
            root = self._look()
            if self._asked:
                return False
            try:
                self._start(root)
                return self._wait()
            finally:
                self._end()
        return False

    def _note(self, *_: object) -> None:
        self._asked = True

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            self._ray.init(address="auto", log_to_driver=False, configure_logging=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"--on ray: no Ray cluster can be reached (ray start --head, RAY_ADDRESS): "
                f"{one_line(str(error))[:200]}"
            ) from None
        signal.signal(signal.SIGTERM, self._note)
        self._node_id = self._ray.get_runtime_context().get_node_id()
        try:
            yield
        finally:
            self._ray.shutdown()

    @contextmanager
    def _room(self) -> Iterator[Any]:
        """The placement group.

        Raises ``UserError`` if the cluster has no room for it, and ``_Asked``.
        """
        from ray.util import placement_group, remove_placement_group

        bundles = self._bundles()
        group = placement_group(bundles, strategy="SPREAD")
        try:
            deadline_s = time.monotonic() + _ROOM_TIMEOUT_S
            while not group.wait(_ROOM_LOOK_S):
                if self._asked:
                    raise _Asked
                if time.monotonic() < deadline_s:
                    continue
                sums = {name: sum(each.get(name, 0.0) for each in bundles) for name in bundles[-1]}
                needed = ", ".join(f"{count:g} {name}" for name, count in sums.items())
                there = self._ray.available_resources()
                free = ", ".join(f"{there.get(name, 0):g} {name}" for name in sums)
                raise UserError(
                    f"--on ray: the job needs {needed}, of which {free} are free, for "
                    f"{_ROOM_TIMEOUT_S:.0f} s: give it fewer workers, or the cluster more nodes"
                )
            yield group
        finally:
            remove_placement_group(group)

    def _bundles(self) -> list[dict[str, float]]:
        """What each bundle reserves."""
        servers = [{"CPU": 1.0} for _ in range(self._task.servers)]
        workers = [{"CPU": 1.0} for _ in range(self._task.workers)]
        if self._has_gpus():
            workers = [{**each, "GPU": float(self._task.local_ranks)} for each in workers]
        return [*servers, *workers]

    def _has_gpus(self) -> bool:
        return bool(self._ray.cluster_resources().get("GPU"))

    def _make_actors(self, group: Any) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor_class = self._ray.remote(RoleActor)
        gpus = self._task.local_ranks if self._has_gpus() else 0
        for (kind, index), bundle in zip(self._task.units, self._task.bundles, strict=True):
            place = PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=bundle
            )
            options = {"num_cpus": 0, "num_gpus": gpus if kind == "worker" else 0}
            actor = actor_class.options(scheduling_strategy=place, **options).remote()
            self._roles.append(_Role(Unit(kind, index), actor))

    def _look(self) -> Address:
        """Looks at the nodes. Returns the root's address.

        Raises ``UserError`` if the job cannot run there.
        """
        try:
            found = self._answers(
                [role.actor.look.remote(self._task.paths) for role in self._roles]
            )
        except _Late as error:
            raise UserError(f"--on ray: {error}: are the nodes overloaded or cut off?") from None
        except self._ray.exceptions.RayError as error:
            raise UserError(
                f"--on ray: a node cannot run byteprophet: {_last_line(str(error))}"
            ) from None
        looks = []
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in self._ray.nodes()}
        for role, (fields, node_id) in zip(self._roles, found, strict=True):
            role.node = (addresses.get(node_id, ""), node_id)
            looks.append(look_from(fields, f"node {role.node[0]}"))
        for look in looks:
            check_look(look, f"node {look.host}")
        address = root_address(looks, looks[0], None, "give the nodes one network")
        return Address(address, self._task.port or looks[0].ports[0])

    def _start(self, root: Address) -> None:
        """Starts all roles. Raises ``JobFailed`` if one does not start."""
        job = parse_job(self._task.job, "job")
        starts = []
        for role, scratch in zip(self._roles, self._task.scratch, strict=True):
            spec = replace(job.spec, run_directory=Path(scratch))
            told = Told(job_text(JobFile(spec, root, None, "")), is_scratch=True).to_line()
            arguments = ["role", role.unit.kind, "--job", "-", "--index", str(role.unit.index)]
            starts.append(role.actor.start.remote(arguments, told, scratch))
        try:
            self._answers(starts)
        except _Late as error:
            raise JobFailed(f"{error}, to be started") from None
        except self._ray.exceptions.RayError as error:
            raise JobFailed(f"a role could not be started: {_last_line(str(error))}") from None
        for role in self._roles:
            role.heard_s = time.monotonic()

    def _answers(self, calls: list[Any]) -> list[Any]:
        """The answers to ``calls``, one of each role's actor.

        Raises ``_Late``, which names the roles that do not answer in time, and a ``RayError`` if a
        call has failed.
        """
        _, late = self._ray.wait(calls, num_returns=len(calls), timeout=_CALL_TIMEOUT_S)
        if late:
            names = [
                role.unit.name
                for role, call in zip(self._roles, calls, strict=True)
                if call in late
            ]
            raise _Late(f"no answer for {_CALL_TIMEOUT_S:.0f} s from {', '.join(names)}")
        return list(self._ray.get(calls, timeout=_CALL_TIMEOUT_S))

    def _wait(self) -> bool:
        done_s = None
        while not self._asked:
            self._take_lines(_LINES_S)
            if any(role.lost or role.status not in (None, 0) for role in self._roles):
                raise JobFailed(self._cause())
            workers = [role for role in self._roles if role.unit.kind == "worker"]
            if all(role.status == 0 for role in workers):
                done_s = done_s or time.monotonic()
                is_late = time.monotonic() - done_s > _FAREWELL_S
                if is_late or not any(role.is_running for role in self._roles):
                    return True
        return False

    def _take_lines(self, timeout_s: float) -> None:
        """Waits until some actor has answered, for at most ``timeout_s``; shows what is new."""
        now_s = time.monotonic()
        for role in self._roles:
            if role.is_running and role.call is None and now_s >= role.next_s:
                role.call = role.actor.lines.remote(_LINES_S)
        calls = {role.call: role for role in self._roles if role.call is not None}
        if not calls:
            time.sleep(timeout_s)
            return
        ready, _ = self._ray.wait(list(calls), timeout=timeout_s)
        for call in ready:
            role, calls[call].call = calls[call], None
            try:
                lines, role.status = self._ray.get(call, timeout=_CALL_TIMEOUT_S)
            except self._ray.exceptions.ActorUnavailableError as error:
                role.next_s = time.monotonic() + _LINES_S
                if role.next_s > role.heard_s + _LOST_TIMEOUT_S:
                    role.lost = _last_line(str(error))
                continue
            except self._ray.exceptions.RayError as error:
                role.lost = _last_line(str(error))
                continue
            role.heard_s = time.monotonic()
            self._show(role, lines)

    def _show(self, role: _Role, lines: list[str]) -> None:
        role.lines.extend(lines)
        with suppress(OSError), (self._logs / f"{role.unit.name}.log").open("a") as log:
            log.writelines(f"{line}\n" for line in lines)
        for line in lines:
            _say(with_role(role.unit.name, line))

    def _cause(self) -> str:
        """One line about why the job has failed. A lost raylet comes first: others only miss it."""
        began_s = time.monotonic()
        while time.monotonic() < began_s + _FIRST_CAUSE_S or self._silent():
            if time.monotonic() > began_s + _LOST_TIMEOUT_S or any(r.lost for r in self._roles):
                break
            self._take_lines(_LINES_S)
        lost = next((role for role in self._roles if role.lost), None)
        if lost is not None:
            return self._lost_node() or f"{lost.unit.name}: its Ray actor is lost: {lost.lost}"
        failed = [role.unit.name for role in self._roles if role.status not in (None, 0)]
        places = {role.unit.name: f"on {role.node[0] or 'its node'}" for role in self._roles}
        said = {role.unit.name: list(role.lines) for role in self._roles}
        first = next(role for role in self._roles if role.status not in (None, 0))
        told = told_cause(said, failed, places)
        return told or f"{first.unit.name} ended with status {first.status}"

    def _silent(self) -> bool:
        """Whether an actor whose role runs has not answered for too long."""
        now_s = time.monotonic()
        return any(role.is_running and now_s - role.heard_s > _SILENT_S for role in self._roles)

    def _lost_node(self) -> str | None:
        """One line about a node that has ended and that this job needs; None: there is none."""
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        for role in self._roles:
            address, node_id = role.node
            if node_id and node_id not in alive:
                return (
                    f"{role.unit.name}: its Ray node {address} is lost: its raylet has ended "
                    f"(node {node_id[:12]})"
                )
        if self._node_id not in alive:
            return (
                "the Ray node of this process is lost, and so are all actors: its raylet has ended "
                f"(node {self._node_id[:12]})"
            )
        return None

    def _end(self) -> None:
        """Ends the roles that still run, and fetches what all of them have written."""
        for role in self._roles:
            if role.is_running:
                role.actor.end.remote()
        grace_s = parse_job(self._task.job, "job").spec.limits.grace_s
        deadline_s = time.monotonic() + grace_s + ENDING_S
        while any(role.is_running for role in self._roles) and time.monotonic() < deadline_s:
            self._take_lines(_LINES_S)
        deadline_s = time.monotonic() + FETCH_TIMEOUT_S
        for role, scratch in zip(self._roles, self._task.scratch, strict=True):
            if role.status is not None:
                self._fetch(role, scratch, deadline_s)

    def _fetch(self, role: _Role, scratch: str, deadline_s: float) -> None:
        kept = Path(self._task.run_directory) / "roles" / role.unit.name
        try:
            with fetching(kept) as partial:
                for name, size_bytes in self._call(role.actor.files.remote(), deadline_s):
                    self._fetch_file(role, name, size_bytes, partial / name, deadline_s)
                for name, target in self._call(role.actor.links.remote(), deadline_s):
                    (partial / name).parent.mkdir(parents=True, exist_ok=True)
                    (partial / name).symlink_to(target)
            self._call(role.actor.remove_files.remote(), deadline_s)
        except (self._ray.exceptions.RayError, OSError) as error:
            _say(
                f"byteprophet: warning: results of {role.unit.name} cannot be fetched "
                f"({_last_line(str(error))}); they stay in {scratch} on its node; what has come "
                f"is in {partial_of(kept)}"
            )

    def _fetch_file(
        self, role: _Role, name: str, size_bytes: int, path: Path, deadline_s: float
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            while (offset := file.tell()) < size_bytes:
                part = self._call(role.actor.part.remote(name, offset), deadline_s)
                if not part:
                    break
                file.write(part)

    def _call(self, reference: Any, deadline_s: float) -> Any:
        return self._ray.get(reference, timeout=max(0.0, deadline_s - time.monotonic()))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no reason is known"


def _say(text: str) -> None:
    with suppress(OSError):
        print(text, flush=True)


def main(path: str) -> int:
    """Runs the task in ``path``; its exit status."""
    fields = read_json(Path(path))
    fields["units"] = [tuple(unit) for unit in fields["units"]]
    try:
        return 0 if Client(Task(**fields)).run() else _TERMINATED
    except Error as error:
        _say(f"byteprophet: error: {one_line(str(error))}")
        return 2 if isinstance(error, UserError) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
