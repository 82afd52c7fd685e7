"""Jobs on hosts behind real sshd's: three on ports of loopback, and three with limited links."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli_w

from byteprophet.cli.main import run_cli
from byteprophet.input_files import read_json
from byteprophet.network import Cluster, Host, HostSpec, cut_cable

from ..namespaces import why_not_permitted
from .jobs import (
    FAIL,
    NAMED_S,
    RUN,
    SAVE,
    SAVE_AT_THE_END,
    SOON,
    STAY,
    Started,
    each_killed_role_is_named,
    killed_by_default,
    processes_below,
    run,
    runs_as_alone,
    saves_at_signal,
    saves_at_the_end,
    wait_until_gone,
    write_script,
)
from .pages import shown_on
from .sshd import Sshd, User, host_table, make_key, why_not

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.usefixtures("default_signals"),
]


@dataclass(frozen=True)
class Ssh:
    """Hosts behind ssh, and the file that lists them."""

    user: User
    servers: list[Sshd]
    file: Path
    scratch: Path

    def left(self) -> list[object]:
        """What is left of jobs on the hosts."""
        return [*processes_below(str(self.scratch)), *self.scratch.glob("byteprophet-*")]


def write_hosts(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text(tomli_w.dumps({"schema": 1, "host": rows}))
    return path


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[Ssh]:
    """Three servers on loopback: the second one is for the server role."""
    user = User(tmp_path / "home")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with ExitStack() as stack:
        servers = []
        for number in range(3):
            servers.append(Sshd(tmp_path / f"sshd-{number}", "127.0.0.1", user))
            stack.callback(servers[-1].close)
        rows = [host_table(each, scratch) for each in servers]
        rows[1] |= {"workers": 0, "servers": 1}
        yield Ssh(user, servers, write_hosts(tmp_path / "hosts.toml", rows), scratch)


@pytest.mark.job
def test_a_job_gives_what_one_process_gives(tmp_path: Path, ssh: Ssh) -> None:
    directory = runs_as_alone(tmp_path, *shown_on("ssh"), env=ssh.user.environment)
    assert (directory / "logs" / "worker-1.log").read_text().endswith("done 1\n")
    assert {path.name for path in (directory / "events").iterdir()} >= {
        "transfers-worker-0.arrows", "transfers-worker-1.arrows", "served-server-0.arrows",
    }  # fmt: skip
    summary = read_json(directory / "summary.json")
    roles = {role["name"]: role for role in summary["roles"]}
    assert list(roles) == ["scheduler", "server-0", "worker-0", "worker-1", "controller"]
    assert all(roles[name]["exit_status"] == 0 for name in ("server-0", "worker-0", "worker-1"))
    assert read_json(directory / "summary-worker-0.json")["roles"] == [roles["worker-0"]]
    assert ssh.left() == []


@pytest.mark.job(3)
@pytest.mark.parametrize("killed", killed_by_default("server-0", "worker-1"))
def test_each_killed_role_is_named_and_nothing_is_left(
    tmp_path: Path, ssh: Ssh, killed: Sequence[str]
) -> None:
    # Without a controller; test_local.py and test_slurm.py kill it.
    on = ("--on", "ssh", "--hosts", str(ssh.file), "--scheduler", "fifo")
    mark = str(ssh.scratch)
    each_killed_role_is_named(tmp_path, on, ssh.user.environment, ssh.left, mark, killed=killed)
    errors = (tmp_path / "errors").read_text().splitlines()
    causes = [line for line in errors if "was killed by signal 9 (SIGKILL) after " in line]
    assert all(" (on 127.0.0.1); its log: " in line for line in causes)


def started(tmp_path: Path, ssh: Ssh) -> Started:
    command = [*RUN, "--on", "ssh", "--hosts", str(ssh.file), "--local-ranks", "2", *STAY]
    return Started(command, tmp_path, 4, ssh.user.environment)


@pytest.mark.job
@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_roles_end_with_the_launcher(tmp_path: Path, ssh: Ssh, signum: int, status: int) -> None:
    job = started(tmp_path, ssh)
    named = [f"[worker-{rank // 2}.{rank % 2}] training {rank}\n" for rank in range(4)]
    assert sorted(job.lines) == named
    job.process.send_signal(signum)
    assert job.end(NAMED_S)[0] == status
    wait_until_gone(ssh.left, NAMED_S)


@pytest.mark.job
def test_a_script_saves_within_the_grace(tmp_path: Path, ssh: Ssh) -> None:
    on = ["--on", "ssh", "--hosts", str(ssh.file), "--grace", "60"]
    job = Started([*RUN, *on, *SAVE_AT_THE_END], tmp_path, 2, ssh.user.environment)
    saves_at_the_end(job, ssh.scratch)
    wait_until_gone(ssh.left, NAMED_S)


@pytest.mark.job
def test_a_script_saves_at_a_signal(tmp_path: Path, ssh: Ssh) -> None:
    """As OpenSSH does, the job ignores keys that are configured and not there."""
    lines = ["Host *", *(f"  IdentityFile ~/.ssh/{name}" for name in ("id_work", "id_ed25519"))]
    (ssh.user.home / ".ssh" / "config").write_text("\n".join(lines) + "\n")
    command = [*RUN, "--on", "ssh", "--hosts", str(ssh.file), *SAVE]
    saves_at_signal(Started(command, tmp_path, 2, ssh.user.environment))
    wait_until_gone(ssh.left, NAMED_S)


@pytest.mark.job
def test_a_script_that_fails_is_quoted(tmp_path: Path, ssh: Ssh) -> None:
    arguments = ["--on", "ssh", "--hosts", "hosts.toml", *FAIL]
    done = run(tmp_path, *arguments, env=ssh.user.environment)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("byteprophet: error: worker-1 ended with status 1 after ")
    assert "it said: error: the cause (on 127.0.0.1); its log: " in last
    (own,) = [line for line in done.stdout.splitlines() if "byteprophet: error: worker-1" in line]
    assert own.endswith("; it said: error: the cause")  # without its log, which is not there now
    assert ssh.left() == []


def refused(ssh: Ssh, tmp_path: Path, *arguments: str) -> str:
    """What a job says that is refused, with status 2 and in one line."""
    done = run(
        tmp_path, "--on", "ssh", "--hosts", str(ssh.file), *arguments, "--", "true",
        env=ssh.user.environment,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "runs").exists()
    return done.stderr


def test_a_host_whose_key_is_another_one_is_refused(tmp_path: Path, ssh: Ssh) -> None:
    ssh.user.forget_hosts()
    key = make_key(tmp_path / "another")
    for server in ssh.servers:
        ssh.user.know(server.address, server.port, key)
    said = refused(ssh, tmp_path)
    assert "host 127.0.0.1: its key is not the one in ~/.ssh/known_hosts" in said


def test_a_user_without_the_right_key_is_told(tmp_path: Path, ssh: Ssh) -> None:
    private = ssh.user.home / ".ssh" / "id_ed25519"
    private.unlink()
    make_key(private)
    said = refused(ssh, tmp_path)
    assert "host 127.0.0.1: it accepts none of your keys: start an agent" in said


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        (
            "known_hosts",
            "garbage",
            "~/.ssh/known_hosts has something that asyncssh, our ssh client",
        ),
        (
            "config",
            "Host *\n  Port abc",
            "~/.ssh/config has something that asyncssh, our ssh client",
        ),
    ],
)
def test_a_file_of_ssh_that_cannot_be_read_is_named(
    tmp_path: Path, ssh: Ssh, file: str, text: str, says: str
) -> None:
    with (ssh.user.home / ".ssh" / file).open("a") as end:
        end.write(f"{text}\n")
    assert f"byteprophet: error: host 127.0.0.1: {says}" in refused(ssh, tmp_path)


@pytest.mark.parametrize("name", ["a..b", "x" * 70])
def test_a_name_that_no_host_can_have_is_refused(tmp_path: Path, ssh: Ssh, name: str) -> None:
    write_hosts(ssh.file, [{**host_table(ssh.servers[0], ssh.scratch), "name": name}])
    assert f"error: host {name}: this is no name of a host: " in refused(ssh, tmp_path)


def test_a_host_that_is_not_there_is_named(tmp_path: Path, ssh: Ssh) -> None:
    ssh.servers[2].close()
    said = refused(ssh, tmp_path)
    assert "host 127.0.0.1: ssh cannot reach it: " in said


def test_a_host_without_byteprophet_is_named(tmp_path: Path, ssh: Ssh) -> None:
    rows = [host_table(each, ssh.scratch, python="/usr/bin/false") for each in ssh.servers]
    write_hosts(ssh.file, rows)
    said = refused(ssh, tmp_path)
    assert (
        "host 127.0.0.1: /usr/bin/false -m byteprophet does not run there: status 1; give" in said
    )


def test_a_host_without_the_directory_is_named(tmp_path: Path, ssh: Ssh) -> None:
    rows = [{**host_table(each, ssh.scratch), "directory": "/nowhere"} for each in ssh.servers]
    write_hosts(ssh.file, rows)
    assert "host 127.0.0.1: /nowhere: there is no such file or directory" in refused(ssh, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--on", "ssh"], "--on ssh: name the hosts with --hosts FILE"),
        (["--hosts", "hosts.toml"], "--hosts: only with --on ssh, mpi and kubernetes"),
        (["--on", "fax"], "--on fax: choose one of local, namespaces, ssh, slurm, mpi"),
        (["--slurm", "--exclusive"], "--slurm: only with --on slurm"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["run", *arguments, "--", "true"]) == 2
    assert says in capsys.readouterr().err


def with_more_addresses(host: Host, number: int) -> str:
    """Gives ``host`` a second card, and the first one an address of IPv6, which is returned."""
    address = f"fd00:87::{number}"
    steps = [
        "ip link add ib0 type veth peer name ib1",
        "ip link set ib0 up",
        "ip link set ib1 up",
        f"ip addr add 10.88.0.{number}/24 dev ib0",
        f"ip addr add {address}/64 dev eth0 nodad",
        'test -z "$(ip route show default)"',  # there is no default route
    ]
    done = subprocess.run(
        host.enter(["sh", "-c", " && ".join(steps)]), capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return address


@pytest.mark.job
@pytest.mark.skipif(why_not_permitted() is not None, reason=str(why_not_permitted()))
def test_hosts_with_limited_links_one_of_which_vanishes(tmp_path: Path) -> None:
    """Three hosts and the user's own, each with a network of its own, which ssh reaches by IPv6.

    Each has two cards and no default route: so the user is asked for one, in one line.
    """
    user = User(tmp_path / "home")
    limited = [HostSpec(f"node-{number}", 200_000_000) for number in range(3)]
    with ExitStack() as stack:
        hosts = stack.enter_context(Cluster([HostSpec("desk"), *limited])).hosts
        addresses = [with_more_addresses(host, number) for number, host in enumerate(hosts, 1)]
        servers = []
        for host, address in zip(hosts[1:], addresses[1:], strict=True):
            inside = host.enter([])
            servers.append(Sshd(tmp_path / host.name, address, user, inside))
            stack.callback(servers[-1].close)
        rows = [host_table(each, tmp_path) for each in servers]
        rows[0] |= {"workers": 0, "servers": 1}
        file = write_hosts(tmp_path / "hosts.toml", rows)

        def command(*options: str) -> list[str]:
            on = ("--on", "ssh", "--hosts", str(file), *options)
            return hosts[0].enter([*RUN, *on, "--", *write_script(tmp_path), "stay"], tmp_path)

        asked = subprocess.run(
            command(), capture_output=True, text=True, timeout=150, env=user.environment,
            check=False,
        )  # fmt: skip
        assert asked.returncode == 2, asked.stderr
        assert asked.stderr.count("\n") == 1, asked.stderr
        assert (
            "which address do the other hosts reach? It has lo 127.0.0.1/8, eth0 10.87.0.2/24, "
            "ib0 10.88.0.2/24: give its address in the hosts file, or --interface" in asked.stderr
        )
        job = Started(command("--interface", "eth0"), tmp_path, 2, {**user.environment, **SOON})
        digests = [line.split()[-1] for line in job.lines if "] training " in line]
        assert len(digests) == 2
        assert len({*digests}) == 1
        cut_cable(hosts[3].pid)
        status, said = job.end(NAMED_S + 15)
        assert status == 1
        assert said.startswith("byteprophet: error: worker-1")
        # The cut off host cannot be reached any more, and ends its role by itself.
        wait_until_gone(lambda: processes_below(f"{tmp_path}/byteprophet-"), NAMED_S)
