"""What becomes of a job whose roles end well, fail, are killed, leave, or stay too long."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from pathlib import Path

import pytest

from byteprophet.errors import JobFailed
from byteprophet.launcher import Limits, RoleCommands, run_job
from byteprophet.launcher.leftovers import marked_processes

from .conftest import STAY, MakeSpec, python


def test_a_job_is_done_when_its_workers_are(make_spec: MakeSpec) -> None:
    lines: list[tuple[str, str]] = []
    spec = make_spec(
        ("sh", "-c", 'echo "I am $DMLC_WORKER_ID of $DMLC_NUM_WORKER"; printf unfinished'),
        workers=3,
        servers=2,
    )
    result = run_job(spec, lambda role, line: lines.append((role, line)))
    result.check()
    assert (result.exit_status, result.failed) == (0, None)
    assert sorted(lines) == [
        line
        for index in range(3)
        for line in (
            (f"worker-{index}", f"I am {index} of 3"),
            (f"worker-{index}", "unfinished"),
        )
    ]
    names = ["scheduler", "server-0", "server-1", "worker-0", "worker-1", "worker-2"]
    assert [role.name for role in result.roles] == names
    # The servers did not end by themselves, which is not an error.
    assert [role.stopped for role in result.roles] == [True] * 3 + [False] * 3
    assert [role.exit_status for role in result.roles] == [-signal.SIGTERM] * 3 + [0] * 3


def test_servers_that_end_by_themselves_are_waited_for(make_spec: MakeSpec) -> None:
    leave = ("sh", "-c", "sleep 0.5; echo bye")
    spec = make_spec(("true",), roles=RoleCommands(leave, leave), limits=Limits(farewell_s=30))
    lines: list[tuple[str, str]] = []
    result = run_job(spec, lambda role, line: lines.append((role, line)))
    assert all(role.exit_status == 0 and not role.stopped for role in result.roles)
    assert sorted(lines) == [("scheduler", "bye"), ("server-0", "bye")]


def test_cpu_time_is_the_roles_own(make_spec: MakeSpec) -> None:
    burn = python(
        "import os, time\n"
        "if os.environ['DMLC_WORKER_ID'] == '0':\n"
        "    while time.process_time() < 0.5: pass\n"
    )
    roles = {role.name: role for role in run_job(make_spec(burn)).roles}
    assert roles["worker-0"].cpu_s >= 0.5
    assert roles["worker-1"].cpu_s < roles["worker-0"].cpu_s


def test_a_failing_worker_ends_the_job_and_is_quoted(make_spec: MakeSpec) -> None:
    fail = python(
        "import os, time\n"
        "if os.environ['DMLC_WORKER_ID'] == '1':\n"
        "    print('before')\n"
        "    raise ValueError('the cause')\n"
        "time.sleep(100)"
    )
    spec = make_spec(fail)
    result = run_job(spec)
    log = spec.run_directory / "logs" / "worker-1.log"
    assert result.exit_status == 1
    assert result.failed is not None
    assert result.failed.startswith("worker-1 ended with status 1 after ")
    assert result.failed.endswith(f" s; it said: ValueError: the cause; its log: {log}")
    assert "ValueError: the cause" in log.read_text()
    with pytest.raises(JobFailed, match="the cause"):
        result.check()
    by_name = {role.name: role for role in result.roles}
    assert by_name["worker-0"].stopped
    assert not by_name["worker-1"].stopped


def test_a_killed_worker_is_named_with_its_signal(make_spec: MakeSpec) -> None:
    die = ("sh", "-c", "echo all is well; test $DMLC_WORKER_ID = 0 && kill -9 $$; sleep 100")
    result = run_job(make_spec(die))
    assert result.failed is not None
    assert result.failed.startswith("worker-0 was killed by signal 9 (SIGKILL) after ")
    assert "all is well" not in result.failed


def test_who_has_lost_a_peer_is_not_the_cause(make_spec: MakeSpec) -> None:
    """Worker 1 ends a second after its peers have noticed."""
    rank = "sleep 1; echo ValueError: the cause; exit 2"
    peer = "echo 'PeerLost: rank 1 is gone: connection closed'; exit 1"
    result = run_job(
        make_spec(("sh", "-c", f"if test $DMLC_WORKER_ID = 1; then {rank}; fi; {peer}"))
    )
    assert result.failed is not None
    assert result.failed.startswith("worker-1 ended with status 2 after ")
    assert "; it said: ValueError: the cause;" in result.failed


def test_a_failing_server_ends_the_job(make_spec: MakeSpec) -> None:
    broken = ("sh", "-c", "echo 'Check failed: bind failed'; echo '  [bt] frame'; exit 3")
    result = run_job(make_spec(STAY, roles=RoleCommands(STAY, broken)))
    assert result.failed is not None
    assert "server-0 ended with status 3" in result.failed
    assert "; it said: Check failed: bind failed;" in result.failed


def test_a_server_that_leaves_before_the_others_ends_the_job(make_spec: MakeSpec) -> None:
    result = run_job(make_spec(STAY, roles=RoleCommands(STAY, ("true",))))
    assert result.failed is not None
    assert result.failed.startswith("server-0 ended with status 0 ")
    assert "too early: scheduler, worker-0, worker-1 still running" in result.failed


def test_workers_may_go_on_when_all_servers_have_left(make_spec: MakeSpec) -> None:
    roles = RoleCommands(("true",), ("true",))
    result = run_job(make_spec(("sleep", "1"), roles=roles))
    assert result.failed is None


def test_a_job_that_takes_too_long_is_ended(make_spec: MakeSpec) -> None:
    wait = ("sh", "-c", "test $DMLC_WORKER_ID = 0 || sleep 100")
    result = run_job(make_spec(wait, timeout_s=1.0))
    assert result.failed == (
        "the job did not end within 1 s: scheduler, server-0, worker-1 still running; "
        "worker-0 ended with 0"
    )


def test_a_role_that_ignores_sigterm_is_killed(make_spec: MakeSpec) -> None:
    stubborn = ("sh", "-c", "trap '' TERM; while :; do sleep 1; done")
    result = run_job(make_spec(("true",), roles=RoleCommands(STAY, stubborn)))
    assert result.failed is None
    by_name = {role.name: role.exit_status for role in result.roles}
    assert by_name["server-0"] == -signal.SIGKILL


def test_detached_grandchildren_are_ended_too(make_spec: MakeSpec) -> None:
    """One keeps the environment, one clears it; both leave the worker's session and its pipe."""
    quiet = "</dev/null >/dev/null 2>&1 &"
    spec = make_spec(
        ("sh", "-c", f"setsid sleep 101 {quiet} env -i setsid sleep 102 {quiet} sleep 0.5"),
        workers=1,
    )
    assert run_job(spec).failed is None
    assert marked_processes(str(spec.run_directory)) == []
    assert _command_lines() & {"sleep 101", "sleep 102"} == set()


def _command_lines() -> set[str]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.add(path.read_text(errors="replace").replace("\0", " ").strip())
    return found


def test_temporary_files_and_shared_memory_go(make_spec: MakeSpec) -> None:
    job = "${DMLC_PS_ROOT_PORT}_${DMLC_WORKER_ID}_${BYTEPROPHET_SHARED_MEMORY}"
    name = f'"/dev/shm/BytePS_ShM_{job}_42"'
    script = f'touch {name}; ls {name}; touch "$BYTEPS_SOCKET_PATH/s"; echo "$BYTEPS_SOCKET_PATH"'
    lines: list[str] = []
    run_job(make_spec(("sh", "-c", script)), lambda _, line: lines.append(line))
    assert len(lines) == len(set(lines)) == 4  # each worker has its own of both
    assert not any(Path(line).exists() for line in lines)


def test_long_output_is_complete(make_spec: MakeSpec) -> None:
    count = 20000
    lines: list[str] = []
    spec = make_spec(python(f"for i in range({count}): print(i, 'x' * 90)"), workers=1)
    run_job(spec, lambda _, line: lines.append(line))
    assert [line.split()[0] for line in lines] == [str(i) for i in range(count)]


def test_an_echo_that_fails_ends_the_job(make_spec: MakeSpec) -> None:
    def refuse(role: str, line: str) -> None:
        raise BrokenPipeError(role)

    spec = make_spec(("sh", "-c", "echo hello; sleep 100"))
    with pytest.raises(BrokenPipeError):
        run_job(spec, refuse)
    assert marked_processes(str(spec.run_directory)) == []


def test_jobs_can_follow_each_other_in_one_process(make_spec: MakeSpec) -> None:
    first = make_spec(("true",))
    for attempt in range(2):
        spec = dataclasses.replace(first, run_directory=first.run_directory / str(attempt))
        assert run_job(spec).failed is None
