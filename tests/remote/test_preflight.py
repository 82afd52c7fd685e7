"""Whether a job could run on given hosts, found out before one is started."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from byteprophet.cli.main import run_cli
from byteprophet.remote.look import look
from byteprophet.remote.preflight import check
from byteprophet.remote.preflight.findings import Finding, of_all, of_host, of_pairs
from byteprophet.remote.preflight.host import HostFacts, facts
from byteprophet.remote.preflight.pairs import Meeting, Pair, Peer, meet
from byteprophet.remote.preflight.visits import Visit, Visited

from .sshd import Sshd, User, host_table, why_not

KEY = "00" * 32


@pytest.fixture(scope="module")
def here() -> HostFacts:
    """This host, with limits that are good everywhere."""
    found = facts([])
    limits = {"open files": 65536, "processes": -1}
    return replace(found, shared_memory_bytes=1 << 31, limits=limits)


def bad(findings: list[Finding]) -> list[Finding]:
    assert all(each.ok == (each.todo == "") for each in findings)
    return [each for each in findings if not each.ok]


def test_a_host_knows_what_it_is(here: HostFacts) -> None:
    again = HostFacts.parse(json.loads(json.dumps(vars(here) | {"look": vars(here.look)})))
    assert again == here
    assert {name.rpartition("/")[2] for name in here.checksums} >= {"libbyteprophet_torch.so"}
    assert len(set(here.checksums.values())) == len(here.checksums)
    assert bad(of_host("a", here)) == []


@pytest.mark.parametrize(
    ("changed", "name", "required", "says"),
    [
        ({"shared_memory_bytes": 0}, "a /dev/shm", True, "there is none"),
        ({"shared_memory_bytes": 1 << 26}, "a /dev/shm", False, "0.1 GiB free"),
        ({"limits": {"open files": 100}}, "a limit of open files", True, "100"),
        ({"limits": {"open files": 1024}}, "a limit of open files", False, "1024"),
    ],
)
def test_a_host_that_lacks_something_is_named(
    here: HostFacts, changed: dict[str, Any], name: str, required: bool, says: str
) -> None:
    (found,) = bad(of_host("a", replace(here, **changed)))
    assert (found.name, found.required, found.found) == (name, required, says)


def test_another_version_and_a_missing_path_are_named(here: HostFacts) -> None:
    old = replace(here, look=replace(here.look, version="0.0.1"))
    (found,) = bad(of_host("a", old))
    assert (found.name, found.required) == ("a", True)
    assert found.found.startswith("it has byteprophet 0.0.1, this host ")
    lacking = replace(here, look=look(["/nowhere"]))
    (found,) = bad(of_host("a", lacking))
    assert found.found == "/nowhere: there is no such file or directory there"


def test_files_and_versions_that_differ_are_named(here: HostFacts) -> None:
    name = next(iter(here.checksums))
    other = replace(here, checksums={**here.checksums, name: "0"}, torch="1.0")
    assert bad(of_all({"a": here, "b": here})) == []
    files, versions = bad(of_all({"a": here, "b": here, "c": other}))
    assert (files.required, files.found) == (True, f"{name} is not the same on a and c")
    assert (versions.required, "c has Python" in versions.found) == (False, True)


def test_clocks_and_links_are_judged() -> None:
    pairs = [
        Pair(0, 1, {}, 100_000, -2_500_000_000, 9e9),
        Pair(1, 0, {}, 100_000, 2_500_000_000, 9.4e9),
        Pair(0, 2, {}, 100_000, 1_000_000, 9.4e9),
        Pair(2, 0, {}, 100_000, -1_000_000, 0.9e9),
        Pair(1, 2, {"any port": "no answer within 4 s"}),
    ]
    port, clock, link = bad(of_pairs(["a", "b", "c"], pairs))
    assert (port.name, port.required) == ("b -> c, any port", True)
    assert (clock.name, clock.found) == ("b clock", "2.5 s behind that of a")
    assert (link.name, link.found) == ("c -> a", "900 Mbit/s, round trip 0.10 ms")
    assert link.todo.startswith("the median is 9.20 Gbit/s: ")
    assert not clock.required
    assert not link.required


def ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


def test_every_host_reaches_every_port_of_every_other_one() -> None:
    free = iter(ports(6))
    peers = [Peer(name, "127.0.0.1", {"root": next(free), "any": next(free)}) for name in "abc"]
    meeting = Meeting(peers, KEY, 0.05)
    assert Meeting.parse(meeting.to_text()) == meeting
    found: dict[int, list[Pair]] = {}
    threads = [
        threading.Thread(target=lambda own=own: found.update({own: meet(meeting, own)}))
        for own in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {(p.source, p.target) for rows in found.values() for p in rows} == {
        (0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1),
    }  # fmt: skip
    for pair in (pair for rows in found.values() for pair in rows):
        assert pair.errors == {}
        assert pair.round_trip_ns is not None
        assert pair.offset_ns is not None
        # One machine has one clock.
        assert abs(pair.offset_ns) <= pair.round_trip_ns
        assert pair.bits_per_s is not None
        assert pair.bits_per_s > 0


def test_many_hosts_have_the_time_to_meet(here: HostFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sends to every other one, one after the other."""
    limits_s = []

    class Hosts:
        ask = ""
        hosts = tuple(
            Visited(f"gpu-{index}", f"10.0.0.{index}", None, (), "") for index in range(250)
        )

        def visit(self, module: str, _: str, only: Sequence[int], limit_s: float) -> list[Visit]:
            limits_s.append(limit_s)
            return [Visit("")] * len(only)

    monkeypatch.setattr(check, "_facts", lambda *_: here)
    check.preflight(Hosts(), None)
    assert limits_s[1] >= 60 + 250 * (check._SEND_S + 0.2)


def test_a_stranger_is_not_answered() -> None:
    """Who does not know the key is not told even the time."""
    (first, second, third, fourth) = ports(4)
    peers = [
        Peer("a", "127.0.0.1", {"root": first, "any": second}),
        Peer("b", "127.0.0.1", {"root": third, "any": fourth}),
    ]
    found: list[Pair] = []
    thread = threading.Thread(target=lambda: found.extend(meet(Meeting(peers, KEY, 0.05), 0)))
    thread.start()
    (stranger,) = meet(Meeting(peers, "11" * 32, 0.05), 1)
    assert stranger.round_trip_ns is None
    assert set(stranger.errors) == {"root", "any"}
    thread.join(60)
    assert found[0].round_trip_ns is None


def doctor(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "byteprophet", "doctor", *arguments],
        capture_output=True, text=True, timeout=120, env=env, check=False,
    )  # fmt: skip


def test_this_host_alone() -> None:
    done = doctor("--on", "local", "--json", env=dict(os.environ))
    report = json.loads(done.stdout)
    assert report["able"] == (done.returncode == 0)
    assert report["hosts"] == ["this host"]
    (pair,) = report["pairs"]
    assert (pair["source"], pair["target"], pair["errors"]) == ("this host", "this host", {})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--on", "ray"], "--on ray: choose one of local, ssh, slurm, mpi; in other places, byte"),
        (["--on", "ssh"], "--on ssh: name the hosts with --hosts FILE"),
        (["--hosts", "hosts.toml"], "--hosts needs --on"),
        (["--on", "slurm"], "--on slurm: this process is in no allocation; start it in one"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert run_cli(["doctor", *arguments]) == 2
    assert says in capsys.readouterr().err


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[User, list[Sshd], Path]]:
    """Three hosts behind real sshd's on loopback, which all tests share."""
    if why_not() is not None:
        pytest.skip(str(why_not()))
    directory = tmp_path_factory.mktemp("preflight")
    user = User(directory / "home")
    with ExitStack() as stack:
        servers = []
        for number in range(3):
            servers.append(Sshd(directory / f"sshd-{number}", "127.0.0.1", user))
            stack.callback(servers[-1].close)
        yield user, servers, directory


def over_ssh(
    hosts: tuple[User, list[Sshd], Path], tmp_path: Path, *changed: dict[str, object]
) -> tuple[int, dict[str, Any]]:
    """Status and report, where the hosts' tables are ``changed`` in turn."""
    user, servers, directory = hosts
    rows = [host_table(each, directory) for each in servers]
    for row, change in zip(rows, changed, strict=False):
        row |= change
    (tmp_path / "hosts.toml").write_text(tomli_w.dumps({"schema": 1, "host": rows}))
    arguments = ["--on", "ssh", "--hosts", str(tmp_path / "hosts.toml"), "--json"]
    done = doctor(*arguments, env=user.environment)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def failures(report: dict[str, Any]) -> dict[str, str]:
    return {
        each["name"]: each["found"]
        for each in report["findings"]
        if not each["ok"] and each["required"]
    }


def test_hosts_behind_ssh_that_are_well(
    hosts: tuple[User, list[Sshd], Path], tmp_path: Path
) -> None:
    status, report = over_ssh(hosts, tmp_path)
    assert (status, report["able"], failures(report)) == (0, True, {})
    names = [f"127.0.0.1:{each.port}" for each in hosts[1]]
    assert report["hosts"] == names
    reached = {(pair["source"], pair["target"]) for pair in report["pairs"] if not pair["errors"]}
    assert reached == {(one, other) for one in names for other in names if one != other}
    assert all(pair["bits_per_s"] > 0 for pair in report["pairs"])


def test_hosts_behind_ssh_that_are_not_well(
    hosts: tuple[User, list[Sshd], Path], tmp_path: Path
) -> None:
    """One lacks its directory, one has no byteprophet, and the third one is as it should be."""
    wrong: list[dict[str, object]] = [{"directory": "/nowhere"}, {"python": "/usr/bin/false"}]
    status, report = over_ssh(hosts, tmp_path, *wrong)
    first, second, third = report["hosts"]
    assert (status, report["able"]) == (2, False)
    failed = failures(report)
    assert list(failed) == [second, first]
    assert failed[first] == "/nowhere: there is no such file or directory there"
    assert failed[second] == "python -m byteprophet does not run there: status 1"
    assert {(pair["source"], pair["target"]) for pair in report["pairs"]} == {
        (first, third), (third, first),
    }  # fmt: skip


def test_an_address_that_is_another_hosts_is_named(
    hosts: tuple[User, list[Sshd], Path], tmp_path: Path
) -> None:
    status, report = over_ssh(hosts, tmp_path, {"address": "192.0.2.1"})
    first, second, third = report["hosts"]
    assert status == 2
    failed = failures(report)
    assert failed[f"{first} ports"].startswith("it cannot listen on 192.0.2.1:")
    assert f"{second} -> {first}, the root's port" in failed
    assert f"{third} -> {first}, any port" in failed
    assert f"{second} -> {third}, any port" not in failed
